"""The demo: two small models, trained on the text of Python's own library, and how they learned.

`pico demo` calls `run`. Both runs see the same sequences in the same order and differ in their
initialisation only, so that what they have in common at a step is what the data taught. Everything
shown is asked of the lake in SQL; nothing is kept aside.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pico import config as configs
from pico.api import Lake
from pico.errors import MissingExtraError
from pico.progress import TrainingBar, counting_bar

RUNS = {"seed-0": 0, "seed-1": 1}
PROMPT = "def "
_METRICS = ("effective_rank", "per", "gini", "hoyer")
_BARS = "▁▂▃▄▅▆▇█"
_CHART_WIDTH = 20
_COLUMNS = 6


def run(url: str, steps: int) -> None:
    """Train the two runs into a lake, compute metrics, and show what they say.

    Args:
        url: the lake, made if there is none; finished runs in it are not trained again.
        steps: optimizer steps of each run.

    Raises:
        PicoError: as `Lake.train` does.
    """
    console = Console(highlight=False)
    lake = Lake(url)
    console.print(_heading("Two nano models on the source text of Python's standard library"))
    for name, seed in RUNS.items():
        resolved = configs.load("nano", [f"seeds.init={seed}", f"max_steps={steps}"])
        with TrainingBar(name, steps) as bar:
            lake.train(resolved, name, (), "auto", bar.on_step, bar.on_data)
    with counting_bar("metrics") as on_progress:
        done = lake.compute_metrics(_METRICS, on_progress=on_progress)
    console.print(f"metrics: {done}", soft_wrap=True)
    show(lake, console)
    _report(lake, console, url)
    _what_next(console, url, steps)


def show(lake: Lake, console: Console) -> None:
    """Print the demo's tables from a lake that holds its runs."""
    console.print(_heading("Loss (nats per token)"))
    _show_loss(lake, console)
    console.print(_heading("Effective rank of the attention output weights (o), by layer and step"))
    _show_rank(lake, console)
    console.print(_heading("CKA between the two seeds: residual stream after each layer"))
    _show_cka(lake, console)
    console.print(_heading(f"What seed-0 writes after {PROMPT!r}"))
    console.print(sample(lake, "seed-0"), markup=False, soft_wrap=True)


def unigram_entropy(lake: Lake, run: str) -> float:
    """Return the entropy of the training text's token frequencies, in nats.

    A model that knows only how often each token occurs has this loss.
    """
    row = lake.sql(
        f"""
        WITH v AS (
            SELECT count / sum(count) OVER () AS p FROM vocab
            WHERE count > 0 AND tokenizer = (SELECT tokenizer FROM runs WHERE run = '{run}')
        )
        SELECT -sum(p * ln(p)) FROM v
        """
    ).fetchall()
    return float(row[0][0])


def sample(lake: Lake, run: str, n_tokens: int = 60) -> str:
    """Return text that a run's last state writes after the prompt; always the same."""
    import torch

    from pico.data.corpus import tokenizer_of

    model: Any = lake.load_model(run)
    (row,) = lake.sql(f"SELECT dataset FROM runs WHERE run = '{run}'").fetchall()
    tokenizer = tokenizer_of(lake.snapshot(), row[0])
    prompt = torch.tensor(tokenizer.encode_batch([PROMPT]))
    ids = model.generate(prompt, n_tokens, temperature=0.8, top_k=50, seed=0)
    return tokenizer.decode(ids[0].tolist())


def chart(values: Sequence[float]) -> str:
    """Return a line of bars, one per value, from the lowest to the highest.

    >>> chart([0, 1, 2, 7])
    '▁▂▃█'
    """
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[min(int((v - low) / span * 8), 7)] for v in values)


def _show_loss(lake: Lake, console: Console) -> None:
    losses = lake.query("loss").pl()
    measured = losses.filter(pl.col("heldout_loss").is_not_null())
    steps = _some(sorted(measured["step"].unique().to_list()))
    table = _table(["run", *map(str, steps), "training loss"])
    for name in RUNS:
        of_run = measured.filter(pl.col("run") == name)
        held_out = dict(zip(of_run["step"], of_run["heldout_loss"], strict=True))
        every = losses.filter((pl.col("run") == name) & pl.col("loss").is_not_null())["loss"]
        thinned = every.to_list()[:: -(-len(every) // _CHART_WIDTH)]
        cells = [f"{held_out[step]:.3f}" if step in held_out else "" for step in steps]
        table.add_row(name, *cells, chart(thinned))
    console.print(table)
    entropy = unigram_entropy(lake, next(iter(RUNS)))
    console.print(f"held-out loss by step; knowing token frequencies alone gives {entropy:.3f}")


def _show_rank(lake: Lake, console: Console) -> None:
    rows = lake.sql(
        """
        SELECT run, layer, step, value FROM metrics
        WHERE metric = 'effective_rank' AND table_name = 'weights' AND component = 'o'
        ORDER BY ALL
        """
    ).pl()
    _show_by_step(console, rows, ["run", "layer"], "{:.1f}")


def _show_cka(lake: Lake, console: Console) -> None:
    first, second = RUNS
    rows = lake.query("cka_between_runs", run=first, other=second, site="resid.post").pl()
    _show_by_step(console, rows.rename({"cka": "value"}), ["layer"], "{:.3f}")


def _show_by_step(console: Console, rows: pl.DataFrame, keys: list[str], form: str) -> None:
    """Print a value per step, a line per key, with its shape at the end."""
    steps = _some(sorted(rows["step"].unique().to_list()))
    table = _table([*keys, *map(str, steps), "all steps"])
    for key, group in rows.sort([*keys, "step"]).group_by(keys, maintain_order=True):
        values = dict(zip(group["step"], group["value"], strict=True))
        cells = [form.format(values[step]) if step in values else "" for step in steps]
        table.add_row(*map(str, key), *cells, chart(list(values.values())))
    console.print(table)


def _some(steps: list[int]) -> list[int]:
    """Return at most a few of the steps, the first and the last among them."""
    n = min(len(steps), _COLUMNS)
    return [steps[round(i * (len(steps) - 1) / max(n - 1, 1))] for i in range(n)]


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column.isdigit() else "left", no_wrap=True)
    return table


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _report(lake: Lake, console: Console, url: str) -> None:
    """Write the page about both runs beside a lake in a folder, if there is matplotlib."""
    if lake.storage.folder is None:
        return
    place = Path(url)
    path = place.with_name(f"{place.name}-report.html")
    try:
        with counting_bar("report") as on_progress:
            lake.report(list(RUNS), path, on_progress)
    except MissingExtraError as error:
        console.print(f"\nno report: {error}", soft_wrap=True, markup=False)
    else:
        console.print(f"\nA page with figures: {path}", soft_wrap=True, markup=False)


def _what_next(console: Console, url: str, steps: int) -> None:
    console.print(_heading("Try next"))
    for command in next_commands(url, steps):
        console.print(f"  {command}", markup=False, soft_wrap=True)


def next_commands(url: str, steps: int) -> list[str]:
    """Return commands to try on the demo's lake of `steps` steps; each works as printed."""
    url, step = shlex.quote(url), min(10, steps - 1)
    return [
        'pico sql "SELECT step, layer, gini(tensor) AS gini, per(tensor) AS per FROM gradients '
        f"WHERE component = 'o' ORDER BY ALL\" --lake {url}",
        f"pico query text_seen -p run=seed-0 -p step={step} --lake {url}",
        f"pico query cka_to_last -p run=seed-0 -p site=resid.post --lake {url}",
        f"pico plot effective_rank_by_layer -p run=seed-0 -p component=o -o rank.svg --lake {url}",
    ]
