-- name: in_context_score
-- topic: tokens
-- summary: How much lower the loss is late in a sequence than early, step by step: learning in context.
-- parameter: run text "the run; NULL: every run" default NULL
-- parameter: probe text "the input; of repeat the second half can be copied" default repeat
-- parameter: share float "share of the positions that are early, and that are late" default 0.5
-- returns: run, step, early_loss, late_loss, in_context_score
-- draws: in_context_score
-- needs: token_scores: pico probe RUN --probe text, or record.probes
-- example: pico query in_context_score -p run=seed-0

-- Below 0: what came before helps. Olsson et al. (2022) take single positions, here a share of all.
WITH scored AS (
    SELECT run, step, position, loss, max(position) OVER (PARTITION BY run) + 1 AS n
    FROM token_scores
    WHERE
        probe = $probe
        AND layer IS NULL
        AND loss IS NOT NULL
        AND ($run IS NULL OR run = $run)
)
SELECT
    run,
    step,
    avg(loss) FILTER (WHERE position < $share * n) AS early_loss,
    avg(loss) FILTER (WHERE position >= (1 - $share) * n) AS late_loss,
    late_loss - early_loss AS in_context_score
FROM scored
GROUP BY run, step
ORDER BY run, step
