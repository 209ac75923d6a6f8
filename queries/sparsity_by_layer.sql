-- name: sparsity_by_layer
-- topic: weights
-- summary: Gini coefficient and Hoyer's sparsity of the weights of a run, by layer and step.
-- parameter: run text "the run"
-- parameter: component text "canonical role, such as o or down; NULL: every tensor" default NULL
-- returns: step, layer, component, name, gini, hoyer
-- draws: gini
-- needs: weights: record.weights
-- example: pico query sparsity_by_layer -p run=seed-0 -p component=o

SELECT
    step,
    layer,
    component,
    name,
    gini(tensor) AS gini,
    hoyer(tensor) AS hoyer
FROM weights
WHERE run = $run AND ($component IS NULL OR component = $component) AND part = 0
ORDER BY component, layer NULLS FIRST, name, step
