-- name: sequence_exposures
-- topic: data
-- summary: How often a run saw each sequence, when first, and when it saw it again.
-- parameter: run text "the run"
-- parameter: min_exposures int "the fewest exposures to list; 2: what was repeated" default 1
-- returns: dataset, sequence_id, n_exposures, first_step, repeat_step, last_step
-- draws: nothing
-- example: pico query sequence_exposures -p run=seed-0

-- The first row is the run's first repeat, if it has one.
WITH exposures AS (
    SELECT
        coalesce(batches.dataset, runs.dataset) AS dataset,
        batches.sequence_id,
        list(batches.step ORDER BY batches.step) AS steps
    FROM batches
    LEFT JOIN runs ON runs.run = batches.run
    WHERE batches.run = $run
    GROUP BY ALL
)
SELECT
    dataset,
    sequence_id,
    len(steps) AS n_exposures,
    steps[1] AS first_step,
    steps[2] AS repeat_step,
    steps[-1] AS last_step
FROM exposures
WHERE len(steps) >= $min_exposures
ORDER BY repeat_step NULLS LAST, first_step, dataset, sequence_id
