-- name: update_ratio
-- topic: training
-- summary: Size of the change of each weight tensor from one recorded step to the next, relative to its norm.
-- parameter: run text "the run"
-- parameter: component text "canonical role, such as o or down; NULL: every tensor" default NULL
-- returns: step, next_step, layer, component, name, update_ratio
-- draws: update_ratio
-- needs: weights: record.weights
-- example: pico query update_ratio -p run=seed-0 -p component=o

-- With `record.pairs: true` every second pair of steps is one update apart.
WITH followed AS (
    SELECT step, lead(step) OVER (ORDER BY step) AS next_step
    FROM (SELECT DISTINCT step FROM weights WHERE run = $run)
)
SELECT
    a.step,
    followed.next_step,
    a.layer,
    a.component,
    a.name,
    list_distance(a.value::DOUBLE[], b.value::DOUBLE[]) / frobenius_norm(a.tensor) AS update_ratio
FROM weights AS a
JOIN followed ON followed.step = a.step
JOIN weights AS b ON b.step = followed.next_step AND b.name = a.name
WHERE
    a.run = $run
    AND b.run = $run
    AND ($component IS NULL OR a.component = $component)
    AND a.n_parts = 1
    AND b.n_parts = 1
ORDER BY a.component, a.layer NULLS FIRST, a.name, a.step
