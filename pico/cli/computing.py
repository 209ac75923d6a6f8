"""The command that computes: `pico metrics compute`."""

from __future__ import annotations

from typing import Annotated

import typer

from pico.cli.app import (
    FormatOption,
    LakeOption,
    OutOption,
    PluginOption,
    load_plugins,
    note,
    open_lake,
    write_rows,
)
from pico.cli.asking import metrics_app

_METRICS = "Metrics, as gini,per or subspace_overlap(k=4); by default all of one tensor."


MetricsOption = Annotated[list[str] | None, typer.Option("--metrics", "--metric", help=_METRICS)]
TablesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        help="weights (the default), gradients, activations or optimizer; may be repeated.",
    ),
]
ReferenceStepOption = Annotated[
    str | None,
    typer.Option(
        "--reference-step",
        metavar="last|N",
        help="Compare each tensor with that of this step, by metrics of two tensors.",
    ),
]
ReferenceRunOption = Annotated[
    str | None,
    typer.Option("--reference-run", help="Compare with this run, at the same step or that."),
]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="auto|ADDRESS",
        help="Compute on a Ray cluster; auto finds one or starts one on this machine.",
    ),
]
DeviceOption = Annotated[
    str, typer.Option("--device", help="cpu, or a GPU as torch calls it: cuda, cuda:1.")
]


@metrics_app.command(
    "compute",
    epilog="Examples:  pico metrics compute --metrics per,gini --lake my-lake  |  "
    "pico metrics compute --dry-run --lake my-lake  |  "
    "pico metrics compute --metrics cka --reference-step last --table activations --lake my-lake"
    "  |  pico metrics compute --ray auto --lake my-lake",
)
def metrics_compute(
    lake: LakeOption,
    run: Annotated[str | None, typer.Option("--run", help="One run; by default all.")] = None,
    metric: MetricsOption = None,
    table: TablesOption = None,
    reference_step: ReferenceStepOption = None,
    reference_run: ReferenceRunOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how much is missing; compute nothing.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="By default one per core, or per GPU.")
    ] = None,
    ray: RayOption = None,
    device: DeviceOption = "cpu",
    plugin: PluginOption = None,
    format: FormatOption = "table",
    out: OutOption = None,
) -> None:
    """Compute the metrics that are missing and keep them in the lake."""
    from pico.progress import counting_bar

    load_plugins(plugin)
    with counting_bar("tensors") as on_progress:
        done = open_lake(lake).compute_metrics(
            metric or None,
            run,
            table or "weights",
            on_progress,
            reference_step=reference_step,
            reference_run=reference_run,
            dry_run=dry_run,
            workers=workers,
            ray=ray,
            device=device,
        )
    if dry_run and (done.lacks or format != "table" or out is not None):
        write_rows(done.rows(), format, out)
    note(str(done))
