-- name: gradient_cosine
-- topic: gradients
-- summary: Cosine of each gradient with that of the next recorded step: 1 where both point one way.
-- parameter: run text "the run"
-- parameter: component text "canonical role, such as o or down; NULL: every tensor" default NULL
-- returns: step, next_step, layer, component, name, cosine
-- draws: cosine
-- needs: gradients: record.gradients
-- example: pico query gradient_cosine -p run=seed-0 -p component=o

WITH followed AS (
    SELECT step, lead(step) OVER (ORDER BY step) AS next_step
    FROM (SELECT DISTINCT step FROM gradients WHERE run = $run AND stage = 'raw')
)
SELECT
    a.step,
    followed.next_step,
    a.layer,
    a.component,
    a.name,
    cosine_similarity(a.tensor, b.tensor) AS cosine
FROM gradients AS a
JOIN followed ON followed.step = a.step
JOIN gradients AS b ON b.step = followed.next_step AND b.name = a.name AND b.stage = a.stage
WHERE
    a.run = $run
    AND b.run = $run
    AND a.stage = 'raw'
    AND ($component IS NULL OR a.component = $component)
    AND a.n_parts = 1
    AND b.n_parts = 1
ORDER BY a.component, a.layer NULLS FIRST, a.name, a.step
