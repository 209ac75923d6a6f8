-- name: norm_growth
-- topic: weights
-- summary: Norm of each weight tensor by step, and how many times that of its first record it is.
-- parameter: run text "the run; NULL: every run" default NULL
-- parameter: component text "canonical role, such as o or down; NULL: every tensor" default NULL
-- returns: run, step, layer, component, name, frobenius_norm, growth
-- draws: growth
-- needs: statistics of weights: record.weights or record.tensor_stats
-- example: pico query norm_growth -p run=seed-0 -p component=embed

-- From `tensor_stats`: no tensor is read, and steps count at which only statistics were taken.
SELECT
    run,
    step,
    layer,
    component,
    name,
    frobenius_norm,
    frobenius_norm / first_value(frobenius_norm) OVER (
        PARTITION BY run, name ORDER BY step
    ) AS growth
FROM tensor_stats
WHERE
    table_name = 'weights'
    AND ($run IS NULL OR run = $run)
    AND ($component IS NULL OR component = $component)
ORDER BY run, component, layer NULLS FIRST, name, step
