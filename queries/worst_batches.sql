-- name: worst_batches
-- topic: data
-- summary: The text behind the batches whose loss was furthest above that of the steps before.
-- parameter: run text "the run"
-- parameter: batches int "how many batches to show" default 1
-- parameter: window int "how many steps before count" default 20
-- returns: step, loss, excess, rank, micro_step, position, dataset, sequence_id, sequence_loss, text
-- draws: nothing
-- example: pico query worst_batches -p run=seed-0

WITH losses AS (
    SELECT
        step,
        value AS loss,
        value - avg(value) OVER (
            ORDER BY step RANGE BETWEEN $window PRECEDING AND 1 PRECEDING
        ) AS excess
    FROM scalars
    WHERE run = $run AND name = 'loss'
),
worst AS (
    SELECT * FROM losses WHERE excess IS NOT NULL ORDER BY excess DESC, step LIMIT $batches
)
SELECT
    worst.step,
    worst.loss,
    worst.excess,
    batches.rank,
    batches.micro_step,
    batches.position,
    coalesce(batches.dataset, runs.dataset) AS dataset,
    batches.sequence_id,
    batches.loss AS sequence_loss,
    detokenize(sequences.tokens, coalesce(datasets.tokenizer, runs.tokenizer)) AS text
FROM worst
JOIN batches ON batches.step = worst.step
LEFT JOIN runs ON runs.run = batches.run
-- A data set may lie outside the lake: its ids are known then, its text is not.
LEFT JOIN sequences
    ON sequences.dataset = coalesce(batches.dataset, runs.dataset)
    AND sequences.sequence_id = batches.sequence_id
LEFT JOIN datasets ON datasets.dataset = sequences.dataset
WHERE batches.run = $run
ORDER BY worst.excess DESC, worst.step, sequence_loss DESC, batches.position
