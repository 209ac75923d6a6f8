"""The lake on storage: files, commit log, tensors as rows. Knows neither torch nor SQL.

`storage` moves bytes, `codec` turns tensors into columns, `commit` makes files visible together,
`table` writes and reads data files, `snapshot` says which files count. Everything that writes goes
through a `commit.Stream`; everything that reads goes through a `snapshot.Snapshot`.
"""
