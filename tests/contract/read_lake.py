"""Check that this environment reads a lake without torch: `python read_lake.py LAKE`.

`.ci/wheel-test` copies it out of the source tree and runs it where a wheel was installed with the
base dependencies alone. It is a script and no test, because pytest is not installed there.
"""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pico

EXTRAS = ("torch", "lightning", "transformers", "tokenizers", "datasets", "s3fs", "matplotlib")


def check(lake_url: str) -> None:
    """Read, query and measure the lake of `make_lake`, and fail at the first surprise."""
    present = [name for name in EXTRAS if importlib.util.find_spec(name)]
    assert not present, f"this environment is to have base dependencies alone, not {present}"
    assert "site-packages" in str(Path(pico.__file__)), f"not an installed wheel: {pico.__file__}"

    lake = pico.Lake.open(lake_url)
    assert [run["run"] for run in lake.runs()] == ["small"]
    assert lake.scan("scalars").collect()["value"].to_list() == [4.5, 2.25]
    ranks = lake.sql(
        "SELECT step, effective_rank(tensor), gini(tensor) FROM weights WHERE component = 'o' "
        "ORDER BY step"
    ).fetchall()
    assert [row[0] for row in ranks] == [0, 1], ranks
    assert abs(ranks[0][1] - 1) < 1e-6 and abs(ranks[1][1] - 8) < 1e-6, ranks
    assert lake.queries(), "the wheel has no queries"
    lake.compute_metrics(["gini"])
    kept = lake.sql("SELECT value FROM metrics WHERE metric = 'gini' AND step = 1").fetchall()
    assert (ranks[1][2],) in kept, kept

    for name in ("Recorder", "load_model"):
        message = _message_without_torch(name, lake)
        assert "pico-lake[train]" in message and "\n" not in message, message
    _check_command(lake_url)


def _message_without_torch(name: str, lake: pico.Lake) -> str:
    """Return what pico says when something needs torch."""
    try:
        getattr(pico, name)(lake, run="small")
    except pico.PicoError as error:
        return str(error)
    raise AssertionError(f"pico.{name} worked without torch")


def _check_command(lake_url: str) -> None:
    statement = "SELECT count(*) AS n FROM weights"
    command = [str(Path(sys.executable).with_name("pico")), "sql", statement]
    command += ["--lake", lake_url, "--format", "json"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert '"n"' in answer and "4" in answer, answer
    train = [command[0], "train", "nano", "--lake", lake_url, "--run", "second"]
    refused = subprocess.run(train, capture_output=True, text=True)
    assert refused.returncode == 2 and "pico-lake[train]" in refused.stderr, refused


if __name__ == "__main__":
    check(sys.argv[1])
    names = ("pico-lake", "duckdb", "polars", "pyarrow", "numpy", "fsspec")
    print("read a lake without torch:", f"Python {platform.python_version()},", end=" ")
    print(", ".join(f"{name} {version(name)}" for name in names))
