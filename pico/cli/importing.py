"""Commands for what other tools left: `pico import pico-train`, `pico analyze`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pico.cli.app import FormatOption, LakeOption, OutOption, app, note, open_lake, write_rows

importing = typer.Typer(help="Bring runs of other tools into a lake.")
app.add_typer(importing, name="import")

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would be done; change nothing.")
]


@importing.command(
    "pico-train",
    epilog="Examples:  pico import pico-train runs/smoke --devices 1 --lake my-lake  |  "
    "pico import pico-train runs/smoke --as tiny --steps 0,1000 --dry-run --lake my-lake",
)
def pico_train(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the run.")],
    lake: LakeOption,
    run: Annotated[
        str | None, typer.Option("--as", metavar="RUN", help="Its name in the lake.")
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option("--devices", help="On how many it ran; on one its activations are scrambled."),
    ] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", help="Checkpoints, as 0,1000; by default all.")
    ] = None,
    dry_run: DryRunOption = False,
    format: FormatOption = "table",
    out: OutOption = None,
) -> None:
    """Import the checkpoints of a run of pico-train that the lake does not have yet.

    Its `.pt` files are read by a child process, which unpickles tensors and plain values only.
    """
    from pico import Lake
    from pico.progress import counting_bar

    with counting_bar("checkpoints") as on_progress:
        done = Lake(lake).import_pico_train(
            path, run, devices, numbers(steps), dry_run, on_progress
        )
    if done.rows() or format != "table":
        write_rows(done.rows(), format, out)
    note(str(done))


@app.command(
    epilog="Examples:  pico analyze pico-decoder-tiny-ov.yaml --run tiny --lake my-lake  |  "
    "pico analyze demo.yaml --run tiny --numbers pico --dry-run --lake my-lake",
)
def analyze(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A config of pico-analyze.")],
    lake: LakeOption,
    run: Annotated[str, typer.Option("--run", help="Name of the run.")],
    numbers: Annotated[
        Literal["both", "ours", "pico"],
        typer.Option("--numbers", help="Ours, what pico-analyze itself gives, or both."),
    ] = "both",
    dry_run: DryRunOption = False,
    format: FormatOption = "table",
    out: OutOption = None,
) -> None:
    """Compute what a config of pico-analyze asks for, and keep it in the table `metrics`.

    Its own numbers stand beside ours where they differ: metrics per_pico, gini_pico, ..., and
    component vo_product for what it takes for the weights of an OV circuit.
    """
    from pico.progress import counting_bar

    with counting_bar("values") as on_progress:
        done = open_lake(lake).analyze(config, run, numbers, dry_run, on_progress)
    write_rows(done.rows(), format, out)
    note(str(done))


def numbers(text: str | None) -> list[int] | None:
    """Return the steps of a list as `0,1000`."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no list of steps, such as 0,1000", param_hint="--steps"
        ) from None
