-- name: init_std
-- topic: integrity
-- summary: Mean and standard deviation of the weights at step 0, against the declared initialisation.
-- parameter: run text "the run"
-- returns: layer, component, name, init, numel, declared_mean, mean, declared_std, std, ratio, standard_errors
-- draws: nothing
-- example: pico query init_std -p run=seed-0

-- `ratio` is std / declared_std, `standard_errors` how far that is from 1 in standard errors of the
-- standard deviation of that many normal draws: beyond 4 or so it is no chance.
WITH declared AS (
    SELECT
        name,
        init,
        regexp_extract(init, '^(\w+)\(', 1) AS kind,
        TRY_CAST(regexp_extract(init, '\(([^,)]+)', 1) AS DOUBLE) AS first_number,
        TRY_CAST(trim(regexp_extract(init, ',([^)]+)\)', 1)) AS DOUBLE) AS second_number
    FROM parameters
    WHERE run = $run
),
meant AS (
    SELECT
        name,
        init,
        CASE kind
            WHEN 'normal' THEN first_number
            WHEN 'constant' THEN first_number
            WHEN 'uniform' THEN (first_number + second_number) / 2
        END AS declared_mean,
        CASE kind
            WHEN 'normal' THEN second_number
            WHEN 'constant' THEN 0
            WHEN 'uniform' THEN (second_number - first_number) / sqrt(12)
        END AS declared_std
    FROM declared
)
SELECT
    stats.layer,
    stats.component,
    stats.name,
    meant.init,
    stats.numel,
    meant.declared_mean,
    stats.mean,
    meant.declared_std,
    stats.std,
    stats.std / nullif(meant.declared_std, 0) AS ratio,
    (stats.std / nullif(meant.declared_std, 0) - 1) * sqrt(2 * stats.numel) AS standard_errors
FROM tensor_stats AS stats
LEFT JOIN meant ON meant.name = stats.name
WHERE stats.run = $run AND stats.step = 0 AND stats.table_name = 'weights'
ORDER BY stats.component, stats.layer NULLS FIRST, stats.name
