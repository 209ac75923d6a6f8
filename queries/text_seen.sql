-- name: text_seen
-- topic: data
-- summary: The text that a step of a run was trained on, a row per sequence of its batch.
-- parameter: run text "the run"
-- parameter: step int "the step: its batch turns the state at this step into the next one"
-- returns: rank, micro_step, position, dataset, sequence_id, loss, text
-- draws: nothing
-- example: pico query text_seen -p run=seed-0 -p step=10

SELECT
    batches.rank,
    batches.micro_step,
    batches.position,
    coalesce(batches.dataset, runs.dataset) AS dataset,
    batches.sequence_id,
    batches.loss,
    -- A sequence may begin or end inside a character, whose bytes then become '?'.
    detokenize(sequences.tokens, coalesce(datasets.tokenizer, runs.tokenizer)) AS text
FROM batches
LEFT JOIN runs ON runs.run = batches.run
JOIN sequences
    ON sequences.dataset = coalesce(batches.dataset, runs.dataset)
    AND sequences.sequence_id = batches.sequence_id
LEFT JOIN datasets ON datasets.dataset = sequences.dataset
WHERE batches.run = $run AND batches.step = $step
ORDER BY batches.rank, batches.micro_step, batches.position
