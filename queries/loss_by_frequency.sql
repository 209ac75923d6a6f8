-- name: loss_by_frequency
-- topic: tokens
-- summary: Loss on a probe's tokens by how often they stand in the training data, step by step.
-- parameter: run text "the run; NULL: every run" default NULL
-- parameter: probe text "the input" default text
-- returns: run, step, count_from, n_targets, loss
-- draws: loss
-- needs: token_scores: pico probe RUN --probe text, or record.probes
-- example: pico query loss_by_frequency -p run=seed-0

-- Bands are powers of ten of the target's count in `vocab`: `count_from` is the lowest of its band.
WITH tokenizers AS (
    SELECT runs.run, coalesce(datasets.tokenizer, runs.tokenizer) AS tokenizer
    FROM runs
    LEFT JOIN datasets ON datasets.dataset = runs.dataset
)
SELECT
    scores.run,
    scores.step,
    (10 ** floor(log10(greatest(coalesce(vocab.count, 0), 1))))::BIGINT AS count_from,
    count(*) AS n_targets,
    avg(scores.loss) AS loss
FROM token_scores AS scores
JOIN tokenizers ON tokenizers.run = scores.run
LEFT JOIN vocab
    ON vocab.tokenizer = tokenizers.tokenizer AND vocab.token_id = scores.target_id
WHERE
    ($run IS NULL OR scores.run = $run)
    AND scores.probe = $probe
    AND scores.layer IS NULL
    AND scores.loss IS NOT NULL
GROUP BY ALL
ORDER BY scores.run, count_from, scores.step
