-- name: bytes_per_table
-- topic: lake
-- summary: What each table of the lake takes: files, rows and bytes, by run.
-- parameter: run text "the run; NULL: every run, and what belongs to none" default NULL
-- returns: run, table_name, files, rows, bytes
-- draws: nothing
-- example: pico query bytes_per_table

SELECT
    nullif(regexp_extract(path, '/run=([^/]+)/', 1), '') AS run,
    table_name,
    count(*) AS files,
    sum(rows)::BIGINT AS rows,
    sum(bytes)::BIGINT AS bytes
FROM files
WHERE $run IS NULL OR path LIKE '%/run=' || $run || '/%'
GROUP BY ALL
ORDER BY run NULLS LAST, bytes DESC
