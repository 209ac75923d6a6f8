-- name: text_seen
-- topic: data
-- summary: The text that a step of a run was trained on, a row per sequence of its batch.
-- parameter: run text "the run"
-- parameter: step int "the step: its batch turns the state at this step into the next one"
-- returns: rank, micro_step, position, dataset, sequence_id, loss, text
-- example: pico query text_seen -p run=seed-0 -p step=10

WITH seen AS (
    SELECT
        batches.rank,
        batches.micro_step,
        batches.position,
        coalesce(batches.dataset, runs.dataset) AS dataset,
        batches.sequence_id,
        batches.loss,
        runs.tokenizer
    FROM batches
    LEFT JOIN runs ON runs.run = batches.run
    WHERE batches.run = $run AND batches.step = $step
),
tokens AS (
    SELECT
        seen.*,
        coalesce(datasets.tokenizer, seen.tokenizer) AS vocabulary,
        unnest(sequences.tokens) AS token_id,
        generate_subscripts(sequences.tokens, 1) AS place
    FROM seen
    JOIN sequences
        ON sequences.dataset = seen.dataset AND sequences.sequence_id = seen.sequence_id
    LEFT JOIN datasets ON datasets.dataset = seen.dataset
)
SELECT
    tokens.rank,
    tokens.micro_step,
    tokens.position,
    tokens.dataset,
    tokens.sequence_id,
    any_value(tokens.loss) AS loss,
    -- A sequence may begin or end inside a character, whose bytes then become '?'.
    decode(
        list_reduce(
            list(coalesce(vocab.bytes, encode(vocab.text)) ORDER BY tokens.place),
            lambda text, piece: text || piece
        ),
        'replace'
    ) AS text
FROM tokens
JOIN vocab ON vocab.tokenizer = tokens.vocabulary AND vocab.token_id = tokens.token_id
GROUP BY ALL
ORDER BY tokens.rank, tokens.micro_step, tokens.position
