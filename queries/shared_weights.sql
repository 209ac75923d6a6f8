-- name: shared_weights
-- topic: integrity
-- summary: Checkpoints whose weights are those of another step or run too, with the share of tensors.
-- parameter: run text "the run; NULL: every run" default NULL
-- returns: run, step, other_run, other_step, n_shared, n_tensors, share
-- draws: share
-- example: pico query shared_weights -p run=seed-0

-- Equal states are listed once, the earlier step with the last step (or run) that holds the same.
WITH trained AS (
    SELECT
        weights.run,
        weights.step,
        weights.name,
        weights.content_hash,
        -- One value everywhere, such as the ones of a new norm, tells nothing of its origin.
        coalesce(stats.std <= 1e-6 * stats.max_abs, false) AS is_constant
    FROM weights
    LEFT JOIN parameters ON parameters.run = weights.run AND parameters.name = weights.name
    LEFT JOIN tensor_stats AS stats
        ON stats.run = weights.run
        AND stats.step = weights.step
        AND stats.name = weights.name
        AND stats.table_name = 'weights'
    WHERE
        weights.part = 0
        -- Frozen tensors and buffers do not change; where no parameters are known all count.
        AND coalesce(parameters.trainable, weights.run NOT IN (SELECT run FROM parameters))
),
held AS (
    SELECT
        *,
        count(*) OVER (PARTITION BY run, step) AS n_tensors,
        last_value(step) OVER equals AS other_step,
        last_value(run) OVER equals AS other_run
    FROM trained
    WINDOW equals AS (
        PARTITION BY name, content_hash
        ORDER BY step, run
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
    )
)
SELECT
    run,
    step,
    other_run,
    other_step,
    count(*) AS n_shared,
    any_value(n_tensors) AS n_tensors,
    count(*) / any_value(n_tensors) AS share
FROM held
WHERE (run != other_run OR step != other_step) AND ($run IS NULL OR $run IN (run, other_run))
GROUP BY run, step, other_run, other_step
HAVING NOT bool_and(is_constant)
ORDER BY run, step, other_step, other_run
