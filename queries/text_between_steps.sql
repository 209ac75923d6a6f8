-- name: text_between_steps
-- topic: data
-- summary: Sequences and text that turned a run's state at one step into that at a later one.
-- parameter: run text "the run"
-- parameter: first_step int "the earlier step: its batch is the first"
-- parameter: last_step int "the later step: its batch does not belong"
-- returns: step, rank, micro_step, position, dataset, sequence_id, loss, text
-- draws: nothing
-- example: pico query text_between_steps -p run=seed-0 -p first_step=8 -p last_step=16

WITH seen AS (
    SELECT
        batches.step,
        batches.rank,
        batches.micro_step,
        batches.position,
        coalesce(batches.dataset, runs.dataset) AS dataset,
        batches.sequence_id,
        batches.loss,
        runs.tokenizer
    FROM batches
    LEFT JOIN runs ON runs.run = batches.run
    WHERE batches.run = $run AND batches.step >= $first_step AND batches.step < $last_step
),
texts AS (
    SELECT
        sequences.dataset,
        sequences.sequence_id,
        -- A sequence may begin or end inside a character, whose bytes then become '?'.
        detokenize(
            sequences.tokens, coalesce(datasets.tokenizer, distinct_seen.tokenizer)
        ) AS text
    FROM (SELECT DISTINCT dataset, sequence_id, tokenizer FROM seen) AS distinct_seen
    JOIN sequences USING (dataset, sequence_id)
    LEFT JOIN datasets ON datasets.dataset = sequences.dataset
)
SELECT
    seen.step,
    seen.rank,
    seen.micro_step,
    seen.position,
    seen.dataset,
    seen.sequence_id,
    seen.loss,
    texts.text
FROM seen
-- A data set may lie outside the lake: its ids are known then, its text is not.
LEFT JOIN texts USING (dataset, sequence_id)
ORDER BY seen.step, seen.rank, seen.micro_step, seen.position
