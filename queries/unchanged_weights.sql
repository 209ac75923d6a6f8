-- name: unchanged_weights
-- topic: integrity
-- summary: Steps after which trained weights are the same at the next recorded step, with the rate.
-- parameter: run text "the run; NULL: every run" default NULL
-- returns: run, step, next_step, n_unchanged, n_tensors, share, max_lr
-- draws: share
-- example: pico query unchanged_weights -p run=seed-0

-- `max_lr` is the highest learning rate in between of the groups that the unchanged tensors are in:
-- 0 explains them, NULL says that no rate is recorded.
WITH followed AS (
    SELECT
        weights.run,
        weights.step,
        lead(weights.step) OVER later AS next_step,
        weights.content_hash = lead(weights.content_hash) OVER later AS is_unchanged,
        parameters.param_group
    FROM weights
    LEFT JOIN parameters ON parameters.run = weights.run AND parameters.name = weights.name
    WHERE
        ($run IS NULL OR weights.run = $run)
        AND weights.part = 0
        AND coalesce(parameters.trainable, weights.run NOT IN (SELECT run FROM parameters))
    WINDOW later AS (PARTITION BY weights.run, weights.name ORDER BY weights.step)
),
counted AS (
    SELECT
        run,
        step,
        next_step,
        count(*) FILTER (is_unchanged) AS n_unchanged,
        count(*) AS n_tensors
    FROM followed
    WHERE next_step IS NOT NULL
    GROUP BY run, step, next_step
),
rates AS (
    SELECT followed.run, followed.step, followed.next_step, max(groups.lr) AS max_lr
    FROM (SELECT DISTINCT run, step, next_step, param_group FROM followed WHERE is_unchanged)
        AS followed
    JOIN param_groups AS groups
        ON groups.run = followed.run
        AND groups.step >= followed.step
        AND groups.step < followed.next_step
        AND (followed.param_group IS NULL OR groups.group = followed.param_group)
    GROUP BY followed.run, followed.step, followed.next_step
)
SELECT
    counted.run,
    counted.step,
    counted.next_step,
    counted.n_unchanged,
    counted.n_tensors,
    counted.n_unchanged / counted.n_tensors AS share,
    rates.max_lr
FROM counted
LEFT JOIN rates USING (run, step, next_step)
WHERE counted.n_unchanged > 0
ORDER BY counted.run, counted.step, counted.next_step
