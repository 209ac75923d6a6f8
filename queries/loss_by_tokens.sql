-- name: loss_by_tokens
-- topic: training
-- summary: Loss and held-out loss of runs against the tokens that they had seen, whatever their batch.
-- parameter: run text "the run; NULL: every run" default NULL
-- returns: run, tokens, step, loss, heldout_loss
-- draws: loss, heldout_loss
-- needs: scalars: record.scalars
-- example: pico query loss_by_tokens

SELECT
    scalars.run,
    scalars.step * runs.tokens_per_step AS tokens,
    scalars.step,
    max(scalars.value) FILTER (WHERE scalars.name = 'loss') AS loss,
    max(scalars.value) FILTER (WHERE scalars.name = 'heldout_loss') AS heldout_loss
FROM scalars
JOIN runs ON runs.run = scalars.run
WHERE scalars.name IN ('loss', 'heldout_loss') AND ($run IS NULL OR scalars.run = $run)
GROUP BY scalars.run, scalars.step, runs.tokens_per_step
ORDER BY scalars.run, scalars.step
