-- name: cka_between_runs
-- topic: activations
-- summary: Similarity (linear CKA) of the activations of two runs at equal steps, on the same input.
-- parameter: run text "the first run"
-- parameter: other text "the second run"
-- parameter: site text "where it is taken, such as resid.post; NULL: every site" default NULL
-- returns: step, layer, site, name, probe, cka
-- draws: cka
-- needs: activations of the probe text: pico probe RUN --record activations:resid.post
-- example: pico query cka_between_runs -p run=seed-0 -p other=seed-1

SELECT
    a.step,
    a.layer,
    a.site,
    a.name,
    a.probe,
    cka(a.tensor, b.tensor) AS cka
FROM activations AS a
JOIN activations AS b
    ON b.step = a.step
    AND b.name = a.name
    AND b.site = a.site
    AND b.probe IS NOT DISTINCT FROM a.probe
    AND b.input_hash = a.input_hash
WHERE
    a.run = $run
    AND b.run = $other
    AND ($site IS NULL OR a.site = $site)
    AND a.part = 0
    AND b.part = 0
ORDER BY a.probe, a.layer NULLS FIRST, a.site, a.name, a.step
