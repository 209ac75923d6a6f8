-- name: per_by_layer
-- topic: weights
-- summary: Proportional effective rank of weights or gradients of runs, by layer and step.
-- parameter: run text "the run; NULL: every run" default NULL
-- parameter: component text "canonical role, such as o or down; NULL: every matrix" default NULL
-- parameter: table text "weights or gradients" default weights
-- returns: run, step, layer, component, name, per
-- draws: per
-- needs: weights: record.weights
-- example: pico query per_by_layer -p run=seed-0 -p component=o -p table=gradients

WITH tensors AS (
    SELECT run, step, layer, component, name, tensor
    FROM weights
    WHERE $table = 'weights' AND len(shape) >= 2 AND part = 0
    UNION ALL
    SELECT run, step, layer, component, name, tensor
    FROM gradients
    WHERE $table = 'gradients' AND stage = 'raw' AND len(shape) >= 2 AND part = 0
)
SELECT run, step, layer, component, name, per(tensor) AS per
FROM tensors
WHERE ($run IS NULL OR run = $run) AND ($component IS NULL OR component = $component)
ORDER BY run, component, layer NULLS FIRST, name, step
