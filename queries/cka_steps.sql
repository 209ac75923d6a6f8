-- name: cka_steps
-- topic: activations
-- summary: Similarity (linear CKA) of a layer's activations at each step with those at every other.
-- parameter: run text "the run"
-- parameter: layer int "the layer; NULL: the last" default NULL
-- parameter: site text "where activations are taken" default resid.post
-- parameter: probe text "the input" default text
-- returns: step, other_step, layer, cka
-- draws: cka
-- needs: activations of the probe text: pico probe RUN --record activations:resid.post
-- example: pico query cka_steps -p run=seed-0

WITH taken AS (
    SELECT step, layer, input_hash, tensor
    FROM activations
    WHERE
        run = $run AND site = $site AND probe = $probe AND part = 0
        AND layer IS NOT DISTINCT FROM coalesce(
            $layer,
            (SELECT max(layer) FROM activations WHERE run = $run AND site = $site AND probe = $probe)
        )
)
SELECT a.step, b.step AS other_step, a.layer, cka(a.tensor, b.tensor) AS cka
FROM taken AS a
JOIN taken AS b ON b.input_hash IS NOT DISTINCT FROM a.input_hash
ORDER BY a.step, b.step
