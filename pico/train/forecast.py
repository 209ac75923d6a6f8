"""What a run will cost before it is trained: files, rows and bytes of every table, and memory.

`pico plan` and `Lake.plan` call `forecast`. Counts follow the config exactly: the model is built
without memory, and the schedules are those that the recorder asks. Bytes are counts times what a
value and a row of each table took in measured lakes (`_VALUE`, `_ROW`), since how well numbers
compress hardly depends on the model; text is the exception, and is counted in the source.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from pico.config import INDUCTION, RunConfig
from pico.data import sources
from pico.models import PicoDecoder, architecture
from pico.models.architecture import ParameterInfo
from pico.record import plan as plans
from pico.record.due import Due
from pico.record.plan import ActivationPlan, RecordPlan
from pico.record.probeplan import ProbePlan
from pico.train import calendar, probing
from pico.train.trainer import CHECKPOINT_EVERY

_FILE = 2_600
"""Bytes of a Parquet file besides its rows: the footer."""
_TENSOR = 330
"""Bytes of a tensor's row besides its values, with its share of the footer."""
_VALUE = {"weights": 3.45, "gradients": 3.0, "activations": 3.47, "optimizer": 3.33}
"""Bytes of a float32 value: of four bytes three hardly compress; a gradient of the embedding has
zeros for the tokens that a batch lacks. Measured in the demo's lake."""
_ROW = {
    "batches": 5.0,
    "checkpoints": 9_000.0,
    "metrics": 20.0,
    "param_groups": 20.0,
    "parameters": 65.0,
    "scalars": 8.0,
    "tensor_stats": 52.0,
    "token_scores": 33.0,
}
"""Bytes of a row of a row table. Measured in the demo's lake."""
_TOKENS_PER_BYTE = 0.32
"""Of source text, by a byte-level BPE of a few thousand tokens."""
_TOKEN = 0.93
"""Bytes of a stored token id."""
_PROGRAM = 700_000_000
"""Bytes of host memory of Python, torch and the libraries, on a CPU."""
_SCALARS = 5
"""Named numbers of a step."""


@dataclass
class Forecast:
    """What a run will write."""

    n_params: int
    tables: dict[str, Cost] = field(default_factory=dict)
    """By table what all steps of the run write."""
    checkpoint_bytes: int = 0
    """What one checkpoint writes: weights, optimizer state, generators."""
    n_checkpoints: int = 0
    n_commits: int = 0
    memory_bytes: int = 0
    """Memory at the peak: the program, weights, gradients, optimizer, a forward and backward pass,
    and copies of what one step records."""

    @property
    def n_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(cost.n_bytes for cost in self.tables.values())

    @property
    def n_files(self) -> int:
        """Files of all tables and the log."""
        return sum(cost.files for cost in self.tables.values()) + self.n_commits

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per table, and one of the whole."""
        found = [
            {"table": name, "files": c.files, "rows": c.rows, "bytes": c.n_bytes}
            for name, c in self.tables.items()
        ]
        whole = {"rows": sum(c.rows for c in self.tables.values()), "bytes": self.n_bytes}
        return [*found, {"table": "all", "files": self.n_files, **whole}]

    def __str__(self) -> str:
        """Say it in one line."""
        return (
            f"{self.n_params:,} parameters; about {self.n_bytes / 1e9:.2f} GB in {self.n_files:,} "
            f"files, {self.checkpoint_bytes / 1e9:.2f} GB for each of {self.n_checkpoints} "
            f"checkpoints; about {self.memory_bytes / 1e9:.1f} GB of memory"
        )


@dataclass
class Cost:
    """What one table takes."""

    files: int = 0
    rows: int = 0
    n_bytes: int = 0


def forecast(config: RunConfig) -> Forecast:
    """Return what training by a config will write, without training or reading tensors.

    Args:
        config: the resolved config.

    Raises:
        ConfigError: if its `record` section is wrong.
        RecordError: for sites that the model does not have.
        DataError: if its text cannot be found.
    """
    record = plans.parse({"checkpoints": {"every": CHECKPOINT_EVERY}, **config.record})
    probing.check(record)
    with torch.device("meta"):
        model = PicoDecoder(config.model, config.model.vocab_size or config.data.vocab_size)
    counter = _Counter(config, record, model)
    counter.count()
    return counter.found


class _Counter:
    """Adds up what each step writes."""

    def __init__(self, config: RunConfig, record: RecordPlan, model: PicoDecoder) -> None:
        self._config, self._plan, self._model = config, record, model
        self._parameters = architecture.parameters(model)
        self.found = Forecast(sum(p.numel for p in self._parameters))
        self._captured = 0  # bytes of tensors of the step that has most
        self._commits: set[int] = set()  # of the step that is looked at
        self._times = 1.0  # so many steps are like it
        self._n_commits = self._n_checkpoints = 0.0

    def count(self) -> None:
        """Count the whole run."""
        last = self._config.max_steps
        for step, times in calendar.kinds(self._plan, last):
            self._times = times
            before = self._tensor_values
            self._commits.clear()
            self._state(step, step == last)
            if step < last:
                self._caused(step, step == last - 1)
            self._n_commits += len(self._commits) * self._times
            captured = int((self._tensor_values - before) / self._times)
            self._captured = max(self._captured, captured)
        self._times = 1.0
        self._add("runs", 1, 2_000, files=1)
        self._add("parameters", len(self._parameters), _ROW["parameters"], files=1)
        self._text()
        found, size = self.found, 4 * self.found.n_params
        found.n_commits = round(self._n_commits) + 2
        found.n_checkpoints = round(self._n_checkpoints)
        weights, moments = size * _VALUE["weights"] / 4, 2 * size * _VALUE["optimizer"] / 4
        rows = 3 * len(self._parameters)
        found.checkpoint_bytes = int(weights + moments + rows * _TENSOR + _ROW["checkpoints"])
        found.memory_bytes = _PROGRAM + 4 * size + self._captured + self._activation_memory()

    @property
    def _tensor_values(self) -> int:
        return sum(cost.n_bytes for name, cost in self.found.tables.items() if name in _VALUE)

    def _activation_memory(self) -> int:
        """Return what a forward and backward pass of a micro-batch keeps, roughly."""
        sizes, tokens = self._config.model, self._config.batch.micro * self._config.data.seq_len
        per_layer = 12 * sizes.d_model + 4 * sizes.hidden
        vocab = sizes.vocab_size or self._config.data.vocab_size
        return 4 * tokens * (sizes.n_layers * per_layer + 3 * min(vocab, 2**24 // max(tokens, 1)))

    def _state(self, step: int, is_last: bool) -> None:
        whole = self._plan.checkpoints.wants(step, is_last)
        for table, per in (("weights", 1), ("optimizer", 2)):  # two moments of each
            due = Due.of_table(self._plan, table, step, is_last, whole=whole)
            if table == "optimizer" and step == 0:
                continue  # it has no state yet
            self._tensors(table, step, due, self._parameters, per)
        for item in self._plan.activations:
            if item.probe is not None:
                self._sites(step, is_last, item, self._probe_shape(item.probe))
        if whole:
            self._n_checkpoints += self._times
            self._commits.add(step)
            self._add("checkpoints", 1, _ROW["checkpoints"], files=1)
        for name, probe in self._plan.probes.items():
            if probe.scores and probe.schedule.wants(step, is_last):
                self._scores(step, name, probe)

    def _caused(self, step: int, is_last: bool) -> None:
        for stage in plans.STAGES:
            due = Due.of_table(self._plan, "gradients", step, is_last, stage)
            self._tensors("gradients", step, due, self._parameters, 1)
        for item in self._plan.activations:
            if item.probe is None:
                shape = (self._config.batch.size, self._config.data.seq_len)
                self._sites(step, is_last, item, shape)
        is_commit = step in self._commits or step % self._plan.commit_every == 0
        files = 1 if is_commit else 0
        if is_commit:
            self._commits.add(step)
        if self._plan.scalars:
            self._add("scalars", _SCALARS, _ROW["scalars"], files)
            self._add("param_groups", 2, _ROW["param_groups"], files)
        if self._plan.batches:
            self._add("batches", self._config.batch.size, _ROW["batches"], files)

    def _tensors(
        self, table: str, step: int, due: Due, items: Iterable[ParameterInfo], per: int
    ) -> None:
        """Count what is due of a table of parameters, `per` tensors of each."""
        n_stored = n_values = n_counted = n_metrics = 0
        for item in items:
            wanted = due.of(item.name)
            n_stored += per * wanted.stored
            n_values += per * item.numel * wanted.stored
            n_counted += per * wanted.counted
            n_metrics += len(wanted.metrics)
        self._captures(table, step, n_stored, n_values, n_counted, n_metrics)

    def _sites(
        self, step: int, is_last: bool, item: ActivationPlan, shape: tuple[int, int]
    ) -> None:
        due = Due.of_sites(self._plan, item, step, is_last)
        n_stored = n_values = n_metrics = 0
        n_positions = {"last": 1, "all": shape[1]}.get(str(item.positions), len(item.positions))
        for site in item.sites:
            for point in architecture.resolve_site(self._model, site):
                if item.layers is None or point.layer in item.layers:
                    wanted = due.of(point.module_name)
                    n_stored += wanted.stored
                    n_metrics += len(wanted.metrics)
                    n_values += wanted.stored * shape[0] * n_positions * self._width(point)
        self._captures("activations", step, n_stored, n_values, n_stored, n_metrics)

    def _width(self, point: architecture.SitePoint) -> int:
        """Return the features at a site."""
        sizes = self._config.model
        widths = {
            "mlp.hidden": sizes.hidden,
            **dict.fromkeys(("k", "v", "k.rot"), sizes.n_kv_heads * sizes.d_head),
        }
        module = self._model.get_submodule(point.module_name)
        weight = getattr(module, "weight", None)
        if point.site in widths or weight is None or weight.ndim < 2:
            return widths.get(point.site, sizes.d_model)
        return int(weight.shape[1 if point.side == "in" else 0])

    def _captures(
        self, table: str, step: int, n_stored: int, n_values: int, n_counted: int, n_metrics: int
    ) -> None:
        if n_stored:
            self._commits.add(step)
            self._add(table, n_stored, _TENSOR + _VALUE[table] * n_values / n_stored, files=1)
        if n_counted:
            self._add("tensor_stats", n_counted, _ROW["tensor_stats"], step in self._commits)
        if n_metrics:
            self._add("metrics", n_metrics, _ROW["metrics"], step in self._commits)

    def _scores(self, step: int, name: str, probe: ProbePlan) -> None:
        self._commits.add(step)
        n_sequences, length = self._probe_shape(name)
        sizes = self._config.model
        if "token_scores" in probe.scores:
            n_layers = 1 + sizes.n_layers * probe.layer_scores
            n = n_sequences * (length - 1) * n_layers
            self._add("token_scores", n, _ROW["token_scores"], files=1)
        if "attention" in probe.scores:
            n = sizes.n_layers * sizes.n_heads * (3 if name == "repeat" else 2)
            self._add("metrics", n, _ROW["metrics"], files=1)

    def _probe_shape(self, name: str) -> tuple[int, int]:
        sizes = self._plan.probes.get(name, ProbePlan()).sizes
        longest = self._config.data.seq_len
        return sizes.get("n_sequences", 8), min(sizes.get("seq_len", longest), longest)

    def _text(self) -> None:
        """Count the tables of the data set from the size of its source."""
        data = self._config.data
        if data.source == INDUCTION:
            self._add("sequences", data.induction.n_sequences, data.seq_len + 1, files=2)
            return
        n_bytes = sum(len(d.text.encode()) for d in sources.documents(data.source, data.max_bytes))
        n_tokens = n_bytes * _TOKENS_PER_BYTE
        n_rows = int(n_tokens / data.seq_len)
        self._add("sequences", n_rows, _TOKEN * (data.seq_len + 1), files=2)

    def _add(self, table: str, rows: int, per_row: float, files: int | bool) -> None:
        cost = self.found.tables.setdefault(table, Cost())
        cost.files += round(self._times * files)
        cost.rows += round(self._times * rows)
        cost.n_bytes += round(self._times * (rows * per_row + _FILE * files))
