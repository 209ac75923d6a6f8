-- name: effective_rank_by_layer
-- topic: weights
-- summary: Effective rank of the weight matrices of a run, by layer and step.
-- parameter: run text "the run"
-- parameter: component text "canonical role, such as o or down; NULL: every matrix" default NULL
-- returns: step, layer, component, name, effective_rank, per
-- draws: effective_rank
-- needs: weights: record.weights
-- example: pico query effective_rank_by_layer -p run=seed-0 -p component=o

SELECT
    step,
    layer,
    component,
    name,
    effective_rank(tensor) AS effective_rank,
    per(tensor) AS per
FROM weights
WHERE
    run = $run
    AND ($component IS NULL OR component = $component)
    AND len(shape) >= 2
    AND part = 0
ORDER BY component, layer NULLS FIRST, name, step
