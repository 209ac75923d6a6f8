"""Commands that train: `pico demo`, `pico train`, `pico plan`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer.exceptions import Exit

from pico.cli.app import (
    FormatOption,
    LakeOption,
    OutOption,
    PluginOption,
    app,
    load_plugins,
    note,
    write_rows,
)
from pico.errors import ConfigError

if TYPE_CHECKING:
    from pico.train.trainer import Outcome


@app.command(
    epilog="Examples:  pico demo  |  pico demo --lake /tmp/lake --steps 100",
)
def demo(
    lake: Annotated[
        str, typer.Option("--lake", envvar="PICO_LAKE", help="Folder or URL of the lake.")
    ] = "./demo-lake",
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Optimizer steps of each run.")
    ] = 300,
) -> None:
    """Train two small models on real text and look at how they learned."""
    from pico import demo as show

    show.run(lake, steps)


@app.command(
    epilog="Examples:  pico train nano --lake my-lake --run first  |  "
    "pico train nano seeds.init=7 max_steps=500 --lake my-lake --run second",
)
def train(
    config: Annotated[str, typer.Argument(help="A YAML file, or a shipped config's name.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, dotted keys.")
    ] = None,
    *,
    lake: LakeOption,
    run: Annotated[str, typer.Option("--run", help="Name of the run.")],
    resume: Annotated[
        str,
        typer.Option(
            "--resume",
            metavar="auto|never|STEP",
            help="auto: go on from the last checkpoint; never: a new run; STEP: go back to that "
            "checkpoint and withdraw what came after, metrics of it included.",
        ),
    ] = "auto",
    plugin: PluginOption = None,
) -> None:
    """Train a run into a lake; Ctrl-C finishes the step, commits, and exits with code 130."""
    from pico import Lake
    from pico import config as configs
    from pico.progress import TrainingBar

    load_plugins(plugin)
    resolved, wanted = configs.load(config, overrides or []), _resume(resume)
    with TrainingBar(run, resolved.max_steps) as bar:
        outcome = Lake(lake).train(resolved, run, (), wanted, bar.on_step, bar.on_data)
    if outcome.resumed_from == outcome.steps:
        note(f"run {run} already stands at step {outcome.steps}; nothing to do")
        return
    began = "" if outcome.resumed_from is None else f" (resumed from {_beginning(outcome)})"
    ended = "stopped" if outcome.interrupted else "finished"
    for remark in outcome.remarks:
        note(f"note: {remark}")
    note(
        f"run {run} {ended} at step {outcome.steps}{began}; ask it: "
        f"pico runs --lake {shlex.quote(lake)}"
    )
    if outcome.interrupted:
        raise Exit(130)


@app.command(
    epilog="Examples:  pico plan nano  |  pico plan pico-small max_steps=10000 "
    "record.weights=pythia  |  pico plan my.yaml --format json",
)
def plan(
    config: Annotated[str, typer.Argument(help="A YAML file, or a shipped config's name.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Dotted keys.")
    ] = None,
    format: FormatOption = "table",
    out: OutOption = None,
    plugin: PluginOption = None,
) -> None:
    """Say what a run will write and how much memory it takes, before training it."""
    from pico import Lake

    load_plugins(plugin)
    found = Lake.plan(config, overrides or ())
    write_rows(found.rows(), format, out)
    note(str(found))


def _resume(text: str) -> Literal["auto", "never"] | int:
    """Return what `--resume` asks for."""
    if text == "auto":
        return "auto"
    if text == "never":
        return "never"
    if text.isascii() and text.isdigit():
        return int(text)
    raise ConfigError(f"--resume takes auto, never or the step of a checkpoint, not {text!r}")


def _beginning(outcome: Outcome) -> str:
    """Say where a run went on, and what that took back."""
    n = outcome.withdrawn
    if not n:
        return f"{outcome.resumed_from}; nothing after it"
    return f"{outcome.resumed_from}; {n} {'step' if n == 1 else 'steps'} after it withdrawn"
