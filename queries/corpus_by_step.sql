-- name: corpus_by_step
-- topic: data
-- summary: All that a run was trained on, each sequence labelled with its step: tokens, text, source.
-- parameter: run text "the run"
-- returns: run, step, rank, micro_step, position, dataset, sequence_id, origin, documents, tokens, text
-- draws: nothing
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
    -- A sequence may begin or end inside a character, whose bytes then become '?'.
    detokenize(shown.tokens, shown.tokenizer) AS text
FROM seen
-- A data set may lie outside the lake: its ids are known then, its text is not.
LEFT JOIN shown ON shown.dataset = seen.of_dataset AND shown.sequence_id = seen.sequence_id
LEFT JOIN sources ON sources.dataset = seen.of_dataset AND sources.sequence_id = seen.sequence_id
ORDER BY seen.step, seen.rank, seen.micro_step, seen.position
