-- name: anisotropy
-- topic: weights
-- summary: Mean cosine between the rows of the embedding, by step: 1 where all tokens point one way.
-- parameter: run text "the run; NULL: every run" default NULL
-- parameter: component text "embed, or unembed" default embed
-- returns: run, step, component, name, mean_cosine
-- draws: mean_cosine
-- needs: weights: record.weights
-- example: pico query anisotropy -p run=seed-0

SELECT run, step, component, name, mean_cosine(tensor) AS mean_cosine
FROM weights
WHERE component = $component AND param = 'weight' AND ($run IS NULL OR run = $run) AND part = 0
ORDER BY run, name, step
