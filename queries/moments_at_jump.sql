-- name: moments_at_jump
-- topic: training
-- summary: The optimizer's moments as last recorded before the largest jump of a run's loss.
-- parameter: run text "the run"
-- returns: jump_step, loss_before, loss, step, layer, component, name, state, frobenius_norm, max_abs
-- draws: nothing
-- needs: optimizer state and losses: record.optimizer, record.scalars
-- example: pico query moments_at_jump -p run=seed-0

-- The jump is the step whose loss is furthest above that of the step before.
WITH losses AS (
    SELECT step, value AS loss, lag(value) OVER (ORDER BY step) AS loss_before
    FROM scalars
    WHERE run = $run AND name = 'loss'
),
jump AS (
    SELECT step AS jump_step, loss_before, loss
    FROM losses
    WHERE loss_before IS NOT NULL
    ORDER BY loss - loss_before DESC, step
    LIMIT 1
),
recorded AS (
    SELECT jump.*, taken.step
    FROM jump
    ASOF JOIN (SELECT DISTINCT step FROM optimizer WHERE run = $run) AS taken
        ON jump.jump_step >= taken.step
)
SELECT
    recorded.jump_step,
    recorded.loss_before,
    recorded.loss,
    recorded.step,
    optimizer.layer,
    optimizer.component,
    optimizer.name,
    optimizer.state,
    frobenius_norm(optimizer.tensor) AS frobenius_norm,
    max_abs(optimizer.tensor) AS max_abs
FROM recorded
JOIN optimizer ON optimizer.step = recorded.step
WHERE optimizer.run = $run AND optimizer.state LIKE 'exp_avg%' AND optimizer.part = 0
ORDER BY optimizer.component, optimizer.layer NULLS FIRST, optimizer.name, optimizer.state
