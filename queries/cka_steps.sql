-- name: cka_steps
-- topic: activations
-- summary: Similarity (linear CKA) of a layer's activations at each step with those at every other.
-- parameter: run text "the run"
-- parameter: layer int "the layer; NULL: the last" default NULL
-- parameter: site text "where activations are taken" default resid.post
-- parameter: probe text "the input" default text
-- parameter: most int "so many steps at most, evenly spread, the last among them; NULL: all" default NULL
-- returns: step, other_step, layer, cka
-- draws: cka
-- needs: activations of the probe text: pico probe RUN --record activations:resid.post
-- example: pico query cka_steps -p run=seed-0

-- Which tensors are compared is found from the keys alone; only those are read then.
WITH recorded AS (
    SELECT step, layer
    FROM activations
    WHERE run = $run AND site = $site AND probe = $probe AND part = 0
),
placed AS (
    SELECT step, row_number() OVER (ORDER BY step DESC) - 1 AS place
    FROM (SELECT DISTINCT step FROM recorded)
),
taken AS (
    SELECT step, layer, input_hash, tensor
    FROM activations
    WHERE
        run = $run AND site = $site AND probe = $probe AND part = 0
        AND layer IS NOT DISTINCT FROM coalesce($layer, (SELECT max(layer) FROM recorded))
        AND step IN (
            SELECT step
            FROM placed
            WHERE $most IS NULL OR place % ceil((SELECT count(*) FROM placed) / $most) = 0
        )
)
SELECT a.step, b.step AS other_step, a.layer, cka(a.tensor, b.tensor) AS cka
FROM taken AS a
JOIN taken AS b ON b.input_hash IS NOT DISTINCT FROM a.input_hash
ORDER BY a.step, b.step
