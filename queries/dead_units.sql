-- name: dead_units
-- topic: activations
-- summary: Share of the hidden units of each MLP that hardly ever act on a probe, by layer and step.
-- parameter: run text "the run; NULL: every run" default NULL
-- parameter: probe text "the input" default text
-- parameter: threshold float "a unit is dead below this share of its layer's median norm" default 0.01
-- returns: run, step, layer, n_units, n_dead, dead_share
-- draws: dead_share
-- needs: activations at mlp.hidden: pico probe RUN --record activations:mlp.hidden
-- example: pico query dead_units -p run=seed-0

-- A unit's norm
-- is over all positions of the probe.
WITH norms AS (
    SELECT run, step, layer, col_norms(tensor) AS norms
    FROM activations
    WHERE
        site = 'mlp.hidden'
        AND probe = $probe
        AND ($run IS NULL OR run = $run)
        AND part = 0
),
units AS (SELECT run, step, layer, unnest(norms) AS norm FROM norms),
middles AS (
    SELECT *, median(norm) OVER (PARTITION BY run, step, layer) AS middle FROM units
)
SELECT
    run,
    step,
    layer,
    count(*) AS n_units,
    count(*) FILTER (WHERE norm <= $threshold * middle) AS n_dead,
    n_dead / n_units AS dead_share
FROM middles
GROUP BY run, step, layer
ORDER BY run, layer, step
