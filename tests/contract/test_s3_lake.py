"""All that one does with a lake, done with one on S3; compared with the same lake on a disk."""

from pathlib import Path

import polars as pl
import torch

import pico
from pico.cli import main
from tests.train import tiny

SUMS = "SELECT name, step, list_sum(value) AS total FROM weights ORDER BY name, step"


def test_a_lake_on_s3_does_what_one_on_a_disk_does(
    s3_bucket, s3_options, tmp_path: Path, monkeypatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)  # the options alone must do
    config = tiny.config(tiny.write_text(tmp_path / "text.txt"))
    disk = pico.Lake(str(tmp_path / "lake"))
    disk.train(config, "tiny")
    remote = pico.Lake(f"s3://{s3_bucket}/a/lake", s3_options)
    remote.train({**config, "max_steps": 3}, "tiny")
    outcome = remote.train(config, "tiny")
    assert (outcome.steps, outcome.resumed_from) == (6, 3)

    assert remote.sql(SUMS).fetchall() == disk.sql(SUMS).fetchall()
    scans = [
        lake.scan("weights")
        .filter((pl.col("step") == 3) & (pl.col("layer") == 1))
        .select("name", "step", pl.col("value").list.sum())
        .sort("name")
        .collect()
        for lake in (disk, remote)
    ]
    assert scans[0].equals(scans[1]) and scans[0].height > 5
    assert remote.scan("scalars").collect().height == disk.scan("scalars").collect().height > 0

    for lake in (disk, remote):
        lake.compute_metrics(["gini"])
    asked = "SELECT name, step, value FROM metrics ORDER BY ALL"
    assert remote.sql(asked).fetchall() == disk.sql(asked).fetchall() != []

    theirs, ours = (lake.load_model("tiny", 6).state_dict() for lake in (disk, remote))
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)


def test_the_command_line_says_in_one_line_what_is_wrong(s3_bucket, monkeypatch, capfd) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("sys.argv", ["pico", "runs", "--lake", f"s3://{s3_bucket}/lake"])
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code
    captured = capfd.readouterr()
    assert code == 2 and "Traceback" not in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert "no connection; check endpoint_url (AWS_ENDPOINT_URL)" in captured.err
