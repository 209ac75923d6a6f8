-- name: order_equality
-- topic: data
-- summary: Whether two runs saw the same sequences in the same order, up to a number of tokens.
-- parameter: run text "the first run"
-- parameter: other text "the second run"
-- parameter: tokens int "how many tokens of each run count; NULL: what both have seen" default NULL
-- returns: is_equal, n_tokens, n_sequences, n_different, first_token, step, other_step, dataset, sequence_id, other_dataset, other_sequence_id
-- draws: nothing
-- example: pico query order_equality -p run=seed-0 -p other=seed-1 -p tokens=10000

-- `n_tokens` and `n_sequences` were compared; `first_token` counts the tokens before the first
-- difference, where the runs were at `step` and `other_step`. Batch sizes may differ.
WITH seen AS (
    SELECT
        batches.run,
        batches.step,
        coalesce(batches.dataset, runs.dataset) AS dataset,
        batches.sequence_id,
        coalesce(runs.seq_len, datasets.seq_len) AS seq_len,
        -- A run that began elsewhere has seen what its earlier steps showed.
        batches.step * coalesce(runs.batch_size, count(*) OVER of_step)
            + row_number() OVER (
                PARTITION BY batches.run, batches.step
                ORDER BY batches.rank, batches.micro_step, batches.position
            )
            - 1 AS place
    FROM batches
    LEFT JOIN runs ON runs.run = batches.run
    LEFT JOIN datasets ON datasets.dataset = coalesce(batches.dataset, runs.dataset)
    WHERE batches.run IN ($run, $other)
    WINDOW of_step AS (PARTITION BY batches.run, batches.step)
),
counted AS (
    SELECT * FROM seen
    WHERE $tokens IS NULL OR (place + 1) * seq_len <= $tokens
),
compared AS (
    SELECT
        a.place,
        a.place * a.seq_len AS first_token,
        a.seq_len,
        a.step,
        b.step AS other_step,
        a.dataset,
        a.sequence_id,
        b.dataset AS other_dataset,
        b.sequence_id AS other_sequence_id,
        a.dataset IS DISTINCT FROM b.dataset
            OR a.sequence_id != b.sequence_id
            OR a.seq_len IS DISTINCT FROM b.seq_len AS is_different
    FROM counted AS a
    JOIN counted AS b ON b.place = a.place
    WHERE a.run = $run AND b.run = $other
),
summary AS (
    SELECT
        count(*) AS n_sequences,
        sum(seq_len) AS n_tokens,
        count(*) FILTER (is_different) AS n_different,
        min(place) FILTER (is_different) AS place
    FROM compared
)
SELECT
    CASE WHEN summary.n_sequences > 0 THEN summary.n_different = 0 END AS is_equal,
    CAST(summary.n_tokens AS BIGINT) AS n_tokens,
    summary.n_sequences,
    summary.n_different,
    compared.first_token,
    compared.step,
    compared.other_step,
    compared.dataset,
    compared.sequence_id,
    compared.other_dataset,
    compared.other_sequence_id
FROM summary
LEFT JOIN compared ON compared.place = summary.place
