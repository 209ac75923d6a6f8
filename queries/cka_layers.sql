-- name: cka_layers
-- topic: activations
-- summary: Similarity (linear CKA) of each layer's activations with every other layer's, at one step.
-- parameter: run text "the run"
-- parameter: step int "the step; NULL: the last recorded" default NULL
-- parameter: site text "where activations are taken" default resid.post
-- parameter: probe text "the input" default text
-- returns: step, layer, other_layer, cka
-- draws: cka
-- needs: activations of the probe text: pico probe RUN --record activations:resid.post
-- example: pico query cka_layers -p run=seed-0

WITH taken AS (
    SELECT step, layer, input_hash, tensor
    FROM activations
    WHERE
        run = $run AND site = $site AND probe = $probe AND part = 0
        AND step = coalesce(
            $step,
            (SELECT max(step) FROM activations WHERE run = $run AND site = $site AND probe = $probe)
        )
)
SELECT a.step, a.layer, b.layer AS other_layer, cka(a.tensor, b.tensor) AS cka
FROM taken AS a
JOIN taken AS b ON b.input_hash IS NOT DISTINCT FROM a.input_hash
ORDER BY a.layer, b.layer
