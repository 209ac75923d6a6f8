"""The notebooks: in step with their text form, without outputs, and what they show when run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import polars as pl
import pytest

from pico.api import Lake

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks"
NAMES = (
    "01_train_and_query",
    "02_what_is_learned_first",
    "03_phases",
    "04_induction_heads",
)
RUN = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


def test_every_notebook_is_listed_here_and_in_the_readme() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    for suffix in (".py", ".ipynb"):
        assert sorted(path.stem for path in FOLDER.glob(f"*{suffix}")) == sorted(NAMES)
    assert all(f"({name}.ipynb)" in readme for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_both_forms_have_the_same_cells_and_no_outputs(name: str) -> None:
    text = jupytext.read(FOLDER / f"{name}.py")
    stored = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(stored)
    found, expected = ([(c.cell_type, c.source) for c in each.cells] for each in (stored, text))
    assert found == expected, f"write it again: jupytext --update --to ipynb notebooks/{name}.py"
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert code and all(not cell.outputs and cell.execution_count is None for cell in code)
    assert 8 <= len(stored.cells) <= 16


def test_the_first_notebook_runs(tmp_path: Path) -> None:
    lake = executed("01_train_and_query", tmp_path, "first")
    losses = lake.sql("SELECT value FROM scalars WHERE name = 'heldout_loss' ORDER BY step")
    first, *_, last = [row[0] for row in losses.fetchall()]
    assert first > 5.8 and last < 4.7


@pytest.mark.slow
def test_frequent_and_predictable_tokens_are_learned_first(tmp_path: Path) -> None:
    lake = executed("02_what_is_learned_first", tmp_path, "order")
    frequency = bands(lake.query("loss_by_frequency", run="small").pl(), "count_from")
    assert frequency[1000, 32] < 0.6 * frequency[1000, 0]
    assert frequency[10, 32] > frequency[10, 0]
    assert frequency[10, 300] < frequency[10, 0]
    surprisal = bands(lake.query("loss_by_surprisal", run="small").pl(), "surprisal_from")
    assert surprisal[0, 300] < surprisal[2, 300] < surprisal[4, 300] < surprisal[6, 300]
    assert surprisal[0, 300] < 2 and abs(surprisal[12, 300] - surprisal[12, 0]) < 0.7


@pytest.mark.slow
def test_two_seeds_pass_through_the_same_phases(tmp_path: Path) -> None:
    lake = executed("03_phases", tmp_path, "phases")
    for run in ("seed-0", "seed-1"):
        rows = lake.query("cka_steps", run=run).pl()
        cka = {(a, b): value for a, b, value in rows.select("step", "other_step", "cka").rows()}
        assert min(cka[0, 4], cka[128, 300]) > 0.85
        assert max(cka[4, 32], cka[8, 64]) < 0.4
        ranks = lake.query("effective_rank_by_layer", run=run, component="o").pl()
        rank = {
            (a, b): value for a, b, value in ranks.select("layer", "step", "effective_rank").rows()
        }
        for layer in (2, 3):
            assert 0.92 < rank[layer, 300] / rank[layer, 64] < 0.98
    between = lake.query("cka_between_runs", run="seed-0", other="seed-1").pl()
    alike = {(a, b): value for a, b, value in between.select("layer", "step", "cka").rows()}
    assert alike[3, 0] < 0.4 and alike[3, 300] > 0.7


@pytest.mark.slow
def test_induction_heads_are_born_where_the_loss_falls(tmp_path: Path) -> None:
    lake = executed("04_induction_heads", tmp_path, "induction")
    heads = lake.query("induction_by_head", run="two-layers").pl()
    late = lake.query("in_context_score", run="two-layers").pl()
    assert heads["step"].unique().sort().to_list() == late["step"].to_list()
    assert late["step"].to_list() == list(range(0, 401, 20))
    assert heads.filter(pl.col("layer") == 0)["score"].max() < 0.1
    best = heads.filter(pl.col("score") == pl.col("score").max())
    of_best = heads.filter(
        (pl.col("layer") == best["layer"][0]) & (pl.col("head") == best["head"][0])
    ).sort("step")
    assert best["layer"][0] == 1
    fall, rise = late["late_loss"].diff().arg_min(), of_best["score"].diff().arg_max()
    assert abs(late["step"][fall] - of_best["step"][rise]) <= 20
    before, after = of_best["step"] <= late["step"][fall] - 60, of_best["step"] > late["step"][fall]
    assert of_best.filter(before)["score"].max() < 0.1
    assert of_best.filter(after)["score"].min() > 0.5
    assert late["late_loss"][fall - 3] > 3.5 and late["late_loss"][fall + 3] < 1.0


def executed(name: str, folder: Path, lake: str) -> Lake:
    """Run a notebook as Jupyter would, see that it ends with a figure, and return its lake."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PICO_NOTEBOOK_LAKES": str(folder),
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm's word for a missing ipywidgets
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
    }
    result = folder / f"{name}.ipynb"
    command = [sys.executable, "-c", RUN, str(FOLDER / result.name), str(result)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    cells = nbformat.read(result, as_version=4).cells
    assert any("image/png" in output.get("data", {}) for output in cells[-1].outputs)
    errors = [o for cell in cells for o in cell.get("outputs", []) if o.get("name") == "stderr"]
    assert not errors, errors[0].text
    return Lake(str(folder / lake))


def bands(answer: pl.DataFrame, band: str) -> dict[tuple[float, int], float]:
    return {(low, step): loss for low, step, loss in answer.select(band, "step", "loss").rows()}
