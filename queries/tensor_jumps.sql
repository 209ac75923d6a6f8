-- name: tensor_jumps
-- topic: integrity
-- summary: Tensors whose norm at a step lies far outside the norms of the steps before and after it.
-- parameter: run text "the run; NULL: every run" default NULL
-- parameter: table text "weights, gradients, activations or optimizer" default weights
-- parameter: min_jump float "the smallest jump to list, as a share of the nearer norm" default 0.01
-- returns: run, step, layer, component, name, stage, state, site, probe, previous_step, next_step, previous_norm, frobenius_norm, next_norm, jump
-- draws: nothing
-- example: pico query tensor_jumps -p run=seed-0

-- Recorded steps with the same tensor in a row count as one, so that several wrong ones are seen.
-- Of neighbours that both lie outside, only the farther one is listed: it makes the other look odd.
WITH measured AS (
    SELECT
        *,
        frobenius_norm IS DISTINCT FROM lag(frobenius_norm) OVER in_order AS is_new
    FROM tensor_stats
    WHERE ($run IS NULL OR run = $run) AND table_name = $table AND frobenius_norm IS NOT NULL
    WINDOW in_order AS (PARTITION BY run, name, stage, state, site, probe ORDER BY step)
),
numbered AS (
    SELECT
        *,
        count(*) FILTER (is_new) OVER (
            PARTITION BY run, name, stage, state, site, probe ORDER BY step
        ) AS stretch
    FROM measured
),
stretches AS (
    SELECT
        run, name, stage, state, site, probe, stretch,
        any_value(layer) AS layer,
        any_value(component) AS component,
        list(step) AS steps,
        any_value(frobenius_norm) AS frobenius_norm,
        lag(max(step)) OVER in_order AS previous_step,
        lead(min(step)) OVER in_order AS next_step,
        lag(any_value(frobenius_norm)) OVER in_order AS previous_norm,
        lead(any_value(frobenius_norm)) OVER in_order AS next_norm
    FROM numbered
    GROUP BY run, name, stage, state, site, probe, stretch
    WINDOW in_order AS (PARTITION BY run, name, stage, state, site, probe ORDER BY stretch)
),
compared AS (
    SELECT
        *,
        CASE
            WHEN previous_step IS NULL OR next_step IS NULL THEN 0
            WHEN frobenius_norm > greatest(previous_norm, next_norm)
                THEN frobenius_norm / greatest(previous_norm, next_norm) - 1
            WHEN frobenius_norm < least(previous_norm, next_norm)
                THEN 1 - frobenius_norm / least(previous_norm, next_norm)
            ELSE 0
        END AS jump
    FROM stretches
),
farthest AS (
    SELECT * FROM compared
    WINDOW in_order AS (PARTITION BY run, name, stage, state, site, probe ORDER BY stretch)
    QUALIFY
        jump >= coalesce(lag(jump) OVER in_order, 0)
        AND jump >= coalesce(lead(jump) OVER in_order, 0)
)
SELECT
    run,
    unnest(steps) AS step,
    layer,
    component,
    name,
    stage,
    state,
    site,
    probe,
    previous_step,
    next_step,
    previous_norm,
    frobenius_norm,
    next_norm,
    jump
FROM farthest
WHERE jump >= $min_jump
ORDER BY jump DESC, run, step, name
