-- name: loss_by_surprisal
-- topic: tokens
-- summary: Loss on a probe's tokens by how surprising they are to bigrams, step by step.
-- parameter: run text "the run"
-- parameter: probe text "the input" default text
-- parameter: width float "width of a band of surprisal, in nats" default 2.0
-- returns: run, step, surprisal_from, surprisal, n_targets, loss
-- draws: loss
-- needs: token_scores: pico probe RUN --probe text, or record.probes
-- example: pico query loss_by_surprisal -p run=seed-0

-- Surprisal of b after a is -ln p(b|a), p(b|a) = (n(ab) + p(b)) / (n(a) + 1) and
-- p(b) = (n(b) + 1) / (n + V), counted in the sequences that the run trains on.
WITH places AS (
    SELECT unnest(sequences.tokens[:-2]) AS a, unnest(sequences.tokens[2:]) AS b
    FROM sequences
    JOIN runs ON runs.dataset = sequences.dataset
    WHERE runs.run = $run
),
pairs AS (SELECT a, b, count(*) AS n FROM places GROUP BY ALL),
firsts AS (SELECT a, sum(n) AS n FROM pairs GROUP BY ALL),
seconds AS (SELECT b, sum(n) AS n FROM pairs GROUP BY ALL),
totals AS (
    SELECT
        (SELECT sum(n) FROM pairs) AS n,
        (SELECT vocab_size FROM runs WHERE run = $run) AS vocab_size
),
scored AS (
    SELECT
        scores.run,
        scores.step,
        scores.loss,
        -ln(
            (
                coalesce(pairs.n, 0)
                + (coalesce(seconds.n, 0) + 1) / (totals.n + totals.vocab_size)
            ) / (coalesce(firsts.n, 0) + 1)
        ) AS surprisal
    FROM token_scores AS scores
    CROSS JOIN totals
    LEFT JOIN pairs ON pairs.a = scores.token_id AND pairs.b = scores.target_id
    LEFT JOIN firsts ON firsts.a = scores.token_id
    LEFT JOIN seconds ON seconds.b = scores.target_id
    WHERE
        scores.run = $run
        AND scores.probe = $probe
        AND scores.layer IS NULL
        AND scores.loss IS NOT NULL
)
SELECT
    run,
    step,
    floor(surprisal / $width) * $width AS surprisal_from,
    avg(surprisal) AS surprisal,
    count(*) AS n_targets,
    avg(loss) AS loss
FROM scored
GROUP BY run, step, surprisal_from
ORDER BY run, surprisal_from, step
