-- name: cka_to_last
-- topic: activations
-- summary: Similarity (linear CKA) of every probe activation of a run with that of the run's last step.
-- parameter: run text "the run"
-- parameter: site text "where it is taken, such as resid.post; NULL: every site" default NULL
-- returns: step, last_step, layer, site, name, probe, cka
-- draws: cka
-- needs: activations of the probe text: pico probe RUN --record activations:resid.post
-- example: pico query cka_to_last -p run=seed-0 -p site=resid.post

WITH latest AS (
    SELECT name, site, probe, input_hash, max(step) AS step
    FROM activations
    WHERE run = $run AND probe IS NOT NULL AND ($site IS NULL OR site = $site)
    GROUP BY ALL
)
SELECT
    a.step,
    latest.step AS last_step,
    a.layer,
    a.site,
    a.name,
    a.probe,
    cka(a.tensor, b.tensor) AS cka
FROM activations AS a
JOIN latest
    ON latest.name = a.name
    AND latest.site = a.site
    AND latest.probe = a.probe
    AND latest.input_hash IS NOT DISTINCT FROM a.input_hash
JOIN activations AS b
    ON b.step = latest.step
    AND b.name = a.name
    AND b.site = a.site
    AND b.probe = a.probe
    AND b.input_hash IS NOT DISTINCT FROM a.input_hash
WHERE a.run = $run AND b.run = $run AND a.part = 0 AND b.part = 0
ORDER BY a.probe, a.layer NULLS FIRST, a.site, a.name, a.step
