-- name: planned_checkpoints
-- topic: integrity
-- summary: Checkpoints that a run's schedule plans up to where it got, and those that are there.
-- parameter: run text "the run; NULL: every run" default NULL
-- parameter: lacking bool "only those that are missing or lack tensors" default false
-- returns: run, step, planned, present, complete, n_tensors, n_parameters
-- draws: nothing
-- example: pico query planned_checkpoints -p run=seed-0

-- `n_tensors` of the `n_parameters` trained parameters are stored at the step. The schedule is that
-- of `record.checkpoints` in the run's config; without a config only what is present is known.
WITH RECURSIVE asked AS (
    SELECT
        run,
        CAST(json_extract_string(config, '$.max_steps') AS BIGINT) AS max_steps,
        coalesce(
            json_extract(config, '$.record.checkpoints'),
            CAST('{"every": 1000}' AS JSON)
        ) AS schedule
    FROM runs
    WHERE config IS NOT NULL AND ($run IS NULL OR run = $run)
),
-- A schedule is a rule or a list of schedules.
parts AS (
    SELECT run, schedule AS rule FROM asked
    UNION ALL
    SELECT run, unnest(CAST(rule AS JSON[])) AS rule FROM parts WHERE json_type(rule) = 'ARRAY'
),
rules AS (
    SELECT
        run,
        json_extract_string(rule, '$') AS word,
        CASE
            WHEN json_extract_string(rule, '$') IN ('true', 'always') THEN 1
            ELSE CAST(json_extract_string(rule, '$.every') AS BIGINT)
        END AS every,
        CAST(json_extract_string(rule, '$.from') AS BIGINT) AS first,
        CAST(json_extract_string(rule, '$.until') AS BIGINT) AS until
    FROM parts
    WHERE
        json_type(rule) NOT IN ('ARRAY', 'NULL')
        AND json_extract_string(rule, '$') NOT IN ('false', 'never')
),
-- The state at s is committed before anything that batch s causes, the last one after the last.
seen AS (
    SELECT run, max(step) AS step, false AS is_batch FROM weights GROUP BY run
    UNION ALL
    SELECT run, max(step), false FROM checkpoints GROUP BY run
    UNION ALL
    SELECT run, max(step), true FROM scalars GROUP BY run
    UNION ALL
    SELECT run, max(step), true FROM batches GROUP BY run
),
reached AS (
    SELECT
        asked.run,
        asked.max_steps,
        max(seen.step + CAST(seen.is_batch AND seen.step + 1 = asked.max_steps AS BIGINT)) AS step
    FROM asked
    JOIN seen ON seen.run = asked.run
    GROUP BY asked.run, asked.max_steps
),
steps AS (
    SELECT run, max_steps, unnest(range(0, step + 1)) AS step FROM reached
),
planned AS (
    SELECT DISTINCT steps.run, steps.step
    FROM steps
    JOIN rules ON rules.run = steps.run
    WHERE
        steps.step = steps.max_steps
        OR TRY_CAST(rules.word AS BIGINT) = steps.step
        OR (
            steps.step >= coalesce(rules.first, 0)
            AND steps.step <= coalesce(rules.until, steps.step)
            AND (steps.step - coalesce(rules.first, 0)) % rules.every = 0
        )
        OR (
            rules.word = 'pythia'
            AND (
                (steps.step <= 512 AND steps.step & (steps.step - 1) = 0)
                OR (steps.step > 0 AND steps.step % 1000 = 0)
            )
        )
),
trained AS (
    SELECT run, name FROM parameters WHERE trainable AND alias_of IS NULL
),
expected AS (
    SELECT run, count(*) AS n_parameters FROM trained GROUP BY run
),
stored AS (
    SELECT weights.run, weights.step, count(DISTINCT weights.name) AS n_tensors
    FROM weights
    JOIN trained ON trained.run = weights.run AND trained.name = weights.name
    GROUP BY weights.run, weights.step
),
listed AS (
    SELECT
        run,
        step,
        planned.step IS NOT NULL OR coalesce(checkpoints.planned, false) AS planned,
        checkpoints.step IS NOT NULL AS present,
        checkpoints.complete,
        coalesce(stored.n_tensors, 0) AS n_tensors,
        coalesce(expected.n_parameters, 0) AS n_parameters
    FROM planned
    FULL JOIN (SELECT * FROM checkpoints WHERE $run IS NULL OR run = $run) AS checkpoints
        USING (run, step)
    LEFT JOIN stored USING (run, step)
    LEFT JOIN expected USING (run)
)
SELECT * FROM listed
WHERE NOT $lacking OR NOT present OR n_tensors < n_parameters
ORDER BY run, step
