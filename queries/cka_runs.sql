-- name: cka_runs
-- topic: activations
-- summary: Similarity (linear CKA) of every run's activations with every other run's, on the same input.
-- parameter: step int "the step; NULL: of each run the last recorded" default NULL
-- parameter: layer int "the layer; NULL: of each run the last" default NULL
-- parameter: site text "where activations are taken" default resid.post
-- parameter: probe text "the input" default text
-- returns: run, other_run, step, other_step, layer, cka
-- draws: cka
-- needs: activations of the probe text: pico probe RUN --record activations:resid.post
-- example: pico query cka_runs

-- Which tensors are compared is found from the keys alone; only those are read then.
WITH recorded AS (
    SELECT run, step, layer
    FROM activations
    WHERE
        site = $site AND probe = $probe AND part = 0
        AND ($step IS NULL OR step = $step)
        AND ($layer IS NULL OR layer = $layer)
),
last AS (
    SELECT run, step, max(layer) AS layer
    FROM recorded
    WHERE (run, step) IN (SELECT (run, max(step)) FROM recorded GROUP BY run)
    GROUP BY run, step
),
taken AS (
    SELECT a.run, a.step, a.layer, a.input_hash, a.tensor
    FROM activations AS a
    JOIN last
        ON a.run = last.run AND a.step = last.step AND a.layer IS NOT DISTINCT FROM last.layer
    WHERE a.site = $site AND a.probe = $probe AND a.part = 0
)
SELECT
    a.run,
    b.run AS other_run,
    a.step,
    b.step AS other_step,
    a.layer,
    cka(a.tensor, b.tensor) AS cka
FROM taken AS a
JOIN taken AS b ON b.input_hash IS NOT DISTINCT FROM a.input_hash
ORDER BY a.run, b.run
