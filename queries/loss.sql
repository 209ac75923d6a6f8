-- name: loss
-- topic: training
-- summary: Training loss and held-out loss by step.
-- parameter: run text "the run; NULL: every run" default NULL
-- returns: run, step, loss, heldout_loss
-- draws: loss, heldout_loss
-- needs: scalars: record.scalars
-- example: pico query loss -p run=seed-0

SELECT
    run,
    step,
    max(value) FILTER (WHERE name = 'loss') AS loss,
    max(value) FILTER (WHERE name = 'heldout_loss') AS heldout_loss
FROM scalars
WHERE name IN ('loss', 'heldout_loss') AND ($run IS NULL OR run = $run)
GROUP BY run, step
ORDER BY run, step
