-- name: corpus_by_step
-- topic: data
-- summary: All that a run was trained on, each sequence labelled with its step: tokens, text, source.
-- parameter: run text "the run"
-- returns: run, step, rank, micro_step, position, dataset, sequence_id, origin, documents, tokens, text
-- example: pico query corpus_by_step -p run=seed-0 --format parquet -o corpus.parquet

-- Whoever trains on the rows in this order repeats the run's order of data.
WITH seen AS (
    SELECT
        batches.*,
        coalesce(batches.dataset, runs.dataset) AS of_dataset,
        runs.tokenizer
    FROM batches
    LEFT JOIN runs ON runs.run = batches.run
    WHERE batches.run = $run
),
shown AS (
    SELECT
        sequences.*,
        coalesce(datasets.tokenizer, distinct_seen.tokenizer) AS tokenizer
    FROM (SELECT DISTINCT of_dataset, sequence_id, tokenizer FROM seen) AS distinct_seen
    JOIN sequences
        ON sequences.dataset = distinct_seen.of_dataset
        AND sequences.sequence_id = distinct_seen.sequence_id
    LEFT JOIN datasets ON datasets.dataset = sequences.dataset
),
pieces AS (
    SELECT
        dataset,
        sequence_id,
        tokenizer,
        unnest(tokens) AS token_id,
        generate_subscripts(tokens, 1) AS place
    FROM shown
),
texts AS (
    SELECT
        pieces.dataset,
        pieces.sequence_id,
        -- A sequence may begin or end inside a character, whose bytes then become '?'.
        decode(
            unhex(string_agg(hex(coalesce(vocab.bytes, encode(vocab.text))), '' ORDER BY place)),
            'replace'
        ) AS text
    FROM pieces
    JOIN vocab ON vocab.tokenizer = pieces.tokenizer AND vocab.token_id = pieces.token_id
    GROUP BY pieces.dataset, pieces.sequence_id
),
sources AS (
    SELECT
        places.dataset,
        places.sequence_id,
        list(documents.uri ORDER BY places.place) AS documents
    FROM (
        SELECT
            dataset,
            sequence_id,
            unnest(doc_ids) AS doc_id,
            generate_subscripts(doc_ids, 1) AS place
        FROM shown
    ) AS places
    JOIN documents ON documents.dataset = places.dataset AND documents.doc_id = places.doc_id
    GROUP BY places.dataset, places.sequence_id
)
SELECT
    seen.run,
    seen.step,
    seen.rank,
    seen.micro_step,
    seen.position,
    seen.of_dataset AS dataset,
    seen.sequence_id,
    shown.origin,
    sources.documents,
    shown.tokens,
    texts.text
FROM seen
-- A data set may lie outside the lake: its ids are known then, its text is not.
LEFT JOIN shown ON shown.dataset = seen.of_dataset AND shown.sequence_id = seen.sequence_id
LEFT JOIN texts ON texts.dataset = seen.of_dataset AND texts.sequence_id = seen.sequence_id
LEFT JOIN sources ON sources.dataset = seen.of_dataset AND sources.sequence_id = seen.sequence_id
ORDER BY seen.step, seen.rank, seen.micro_step, seen.position
