"""The commands that make live models of checkpoints: `pico probe`, `pico average`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pico.cli.app import LakeOption, app, note, open_lake
from pico.cli.importing import numbers

_RECORD = "token_scores, attention, activations:SITE (several as SITE+SITE); several with commas."


@app.command(
    epilog="Examples:  pico probe seed-0 --probe repeat --record token_scores,attention "
    "--lake my-lake  |  pico probe seed-0 --steps 0:300 --layer-scores --lake my-lake  |  "
    "pico probe models/pythia-70m --run pythia --step 143000 --probe poem.txt --lake my-lake",
)
def probe(
    target: Annotated[
        str, typer.Argument(metavar="RUN|DIR", help="A run, or a folder of a saved model.")
    ],
    lake: LakeOption,
    steps: Annotated[
        str, typer.Option("--steps", help="all, last, numbers as 0,100, ranges as 0:300.")
    ] = "all",
    probe: Annotated[
        list[str] | None,
        typer.Option(
            "--probe",
            metavar="NAME|FILE",
            help="text (the default), repeat, a .txt or .jsonl file, or NAME=FILE.",
        ),
    ] = None,
    record: Annotated[str, typer.Option("--record", help=_RECORD)] = "token_scores",
    layer_scores: Annotated[
        bool, typer.Option("--layer-scores", help="Score tokens after each block too.")
    ] = False,
    positions: Annotated[
        Literal["all", "last"], typer.Option("--positions", help="Of activations.")
    ] = "all",
    run: Annotated[
        str | None, typer.Option("--run", help="Of a folder: its name in the lake.")
    ] = None,
    step: Annotated[
        int, typer.Option("--step", min=0, help="Of a folder: the step that it stands for.")
    ] = 0,
    seq_len: Annotated[
        int | None, typer.Option("--seq-len", min=2, help="Tokens of a sequence, at most.")
    ] = None,
) -> None:
    """Run probes through stored checkpoints and fill tables: scores of tokens, heads, activations.

    A second call computes only what is missing, and a killed one goes on where it was.
    """
    from pico import Lake
    from pico.progress import counting_bar

    opened = Lake(lake) if run is not None else open_lake(lake)
    with counting_bar("checkpoints") as on_progress:
        done = opened.probe(
            target,
            probe or "text",
            record,
            steps,
            layer_scores=layer_scores,
            positions=positions,
            run=run,
            step=step,
            seq_len=seq_len,
            on_progress=on_progress,
        )
    note(str(done))


@app.command(
    epilog="Examples:  pico average seed-0 --steps 200,300 --as seed-0-average --lake my-lake",
)
def average(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    lake: LakeOption,
    steps: Annotated[str, typer.Option("--steps", help="Two or more, as 200,300.")],
    as_run: Annotated[str, typer.Option("--as", metavar="RUN", help="Name of the new run.")],
) -> None:
    """Average checkpoints of a run into a run of its own, which pico probe and SQL take."""
    step = open_lake(lake).average(run, numbers(steps) or [], as_run)
    note(f"{as_run}: the mean of {run} at steps {steps}, at step {step}")
