-- name: induction_by_head
-- topic: attention
-- summary: Induction score, or another score of attention, of every head of runs by step.
-- parameter: run text "the run; NULL: every run" default NULL
-- parameter: metric text "induction_score, previous_token_score or attention_entropy" default induction_score
-- parameter: probe text "the input" default repeat
-- returns: run, step, layer, head, score
-- draws: score
-- needs: scores of heads: pico probe RUN --probe repeat --record attention, or record.probes
-- example: pico query induction_by_head -p run=seed-0

SELECT run, step, layer, head, value AS score
FROM metrics
WHERE
    site = 'attention'
    AND metric = $metric
    AND probe = $probe
    AND ($run IS NULL OR run = $run)
ORDER BY run, layer, head, step
