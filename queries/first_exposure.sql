-- name: first_exposure
-- topic: data
-- summary: The step whose batch first showed a string to each run, and how often it was shown.
-- parameter: text text "the string, letter by letter"
-- parameter: run text "the run; NULL: every run" default NULL
-- returns: run, step, dataset, sequence_id, n_sequences, n_exposures, excerpt
-- draws: nothing
-- example: pico query first_exposure -p "text=import os"

-- A run that never saw the string has step NULL. A string that is cut between two sequences is
-- not found.
WITH seen AS (
    SELECT
        batches.run,
        batches.step,
        batches.rank,
        batches.micro_step,
        batches.position,
        coalesce(batches.dataset, runs.dataset) AS dataset,
        batches.sequence_id,
        runs.tokenizer
    FROM batches
    LEFT JOIN runs ON runs.run = batches.run
    WHERE $run IS NULL OR batches.run = $run
),
texts AS (
    SELECT
        sequences.dataset,
        sequences.sequence_id,
        detokenize(
            sequences.tokens, coalesce(datasets.tokenizer, distinct_seen.tokenizer)
        ) AS text
    FROM (SELECT DISTINCT dataset, sequence_id, tokenizer FROM seen) AS distinct_seen
    JOIN sequences USING (dataset, sequence_id)
    LEFT JOIN datasets ON datasets.dataset = sequences.dataset
),
exposures AS (
    SELECT seen.*, texts.text
    FROM seen
    JOIN texts USING (dataset, sequence_id)
    WHERE contains(texts.text, $text)
),
first_ones AS (
    SELECT
        *,
        count(*) OVER of_run AS n_exposures,
        count(DISTINCT (dataset, sequence_id)) OVER of_run AS n_sequences
    FROM exposures
    WINDOW of_run AS (PARTITION BY run)
    QUALIFY
        row_number() OVER (PARTITION BY run ORDER BY step, rank, micro_step, position) = 1
)
SELECT
    run,
    first_ones.step,
    first_ones.dataset,
    first_ones.sequence_id,
    coalesce(first_ones.n_sequences, 0) AS n_sequences,
    coalesce(first_ones.n_exposures, 0) AS n_exposures,
    substring(
        first_ones.text, greatest(strpos(first_ones.text, $text) - 12, 1), length($text) + 24
    ) AS excerpt
FROM (SELECT DISTINCT run FROM seen)
LEFT JOIN first_ones USING (run)
ORDER BY first_ones.step NULLS LAST, run
