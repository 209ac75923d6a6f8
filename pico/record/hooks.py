"""Takes tensors out of a live model: parameters, gradients, optimizer state, activations.

Called by `capture` only. Parameters, gradients and optimizer state are yielded live, to be copied
before the training loop changes them; activations are copies in host memory. Every hook that is
registered here is removed by the same object.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import xxhash
from torch import nn
from torch.utils.hooks import RemovableHandle

from pico.errors import RecordError
from pico.lake.table import TensorRow
from pico.models import architecture
from pico.models.architecture import ParameterInfo, SitePoint
from pico.record.tensors import to_host

Positions = Literal["last", "all"] | tuple[int, ...]
Live: TypeAlias = tuple[dict[str, Any], torch.Tensor]
"""The key columns of a tensor, and the tensor itself."""


def weights(
    model: nn.Module, infos: Mapping[str, ParameterInfo], wanted: Callable[[str], bool]
) -> Iterator[Live]:
    """Yield parameters and persistent buffers whose names are wanted, tied ones once."""
    aliases = {name for name, info in infos.items() if info.alias_of}
    for name, value in model.state_dict().items():
        if name not in aliases and isinstance(value, torch.Tensor) and wanted(name):
            yield _keys(name, infos), value


def gradients(
    model: nn.Module, infos: Mapping[str, ParameterInfo], wanted: Callable[[str], bool]
) -> Iterator[Live]:
    """Yield the gradients of the parameters whose names are wanted and that have one."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and wanted(name):
            yield _keys(name, infos), parameter.grad


def optimizer_state(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    infos: Mapping[str, ParameterInfo],
    wanted: Callable[[str], bool],
) -> Iterator[Live]:
    """Yield the optimizer's buffers of the parameters whose names are wanted."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter, buffers in optimizer.state.items():
        name = names.get(id(parameter))
        if name is None or not wanted(name):
            continue
        for state, value in buffers.items():
            keys = {**_keys(name, infos), "state": state}
            if isinstance(value, torch.Tensor):
                yield keys, value
            elif isinstance(value, (int, float)):
                keys["extra"] = json.dumps({"python": type(value).__name__})
                yield keys, torch.from_numpy(np.asarray(value))


@dataclass(frozen=True)
class TapPoint:
    """A site to record, with the positions wanted there."""

    point: SitePoint
    positions: Positions


class Taps:
    """Hooks on a model that collect activations of every forward pass until removed."""

    def __init__(
        self,
        model: nn.Module,
        points: Sequence[TapPoint],
        reader: str = "",
        is_training: bool = False,
    ) -> None:
        """Register one hook per point, and one that notes the input's token ids.

        Args:
            model: the model.
            points: where to collect.
            reader: name of the module that is given the token ids, by default the whole model;
                the embedding is safer, because a loss may call only parts of a model.
            is_training: leave out passes without gradient, such as a held-out evaluation.
        """
        modules = dict(model.named_modules())
        self._collected: dict[SitePoint, list[torch.Tensor]] = {tap.point: [] for tap in points}
        self._positions = {tap.point: tap.positions for tap in points}
        self._taken: dict[SitePoint, list[int] | None] = {}
        self._hash = xxhash.xxh3_128()
        self._saw_input = False
        self._is_training = is_training
        self._handles = [
            modules[reader].register_forward_pre_hook(self._note_input, with_kwargs=True)
        ]
        for tap in points:
            module = modules[tap.point.module_name]
            if tap.point.side == "in":
                self._handles.append(
                    module.register_forward_pre_hook(self._before(tap.point), with_kwargs=True)
                )
            elif tap.point.side == "out":
                self._handles.append(module.register_forward_hook(self._after(tap.point)))
            else:
                around = modules[tap.point.module_name.rpartition(".")[0]]
                self._handles += _on_rotated(
                    around, module, functools.partial(self._collect, tap.point)
                )

    def remove(self) -> None:
        """Take every hook off the model; safe to call twice."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def input_hash(self) -> str | None:
        """xxh3-128 over the token ids of all forward passes; None when there were none."""
        return self._hash.hexdigest() if self._saw_input else None

    def rows(
        self, probe: str | None, dataset: str | None, sequence_ids: Sequence[int]
    ) -> list[TensorRow]:
        """Return what was collected, the forward passes stacked in order."""
        rows = []
        for point, pieces in self._collected.items():
            if not pieces:
                continue
            stacked = torch.cat(pieces)
            taken = self._taken[point]
            n_rows = len(sequence_ids) * len(taken or [0])
            known = bool(sequence_ids) and stacked.shape[0] == n_rows
            keys = {
                "name": point.module_name,
                "layer": point.layer,
                "site": point.site,
                "probe": probe,
                "input_hash": self.input_hash,
                "dataset": dataset if known else None,
                "sequence_ids": list(sequence_ids) if known else None,
                "positions": taken,
            }
            rows.append(TensorRow(keys, to_host(stacked)))
        return rows

    @property
    def _is_aside(self) -> bool:
        """Whether the forward pass under way is none of those that are collected."""
        return self._is_training and not torch.is_grad_enabled()

    def _note_input(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._is_aside:
            return
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and not value.is_floating_point():
                self._hash.update(hash_bytes(value))
                self._saw_input = True
                return

    def _before(self, point: SitePoint) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._collect(point, next(iter((*args, *kwargs.values())), None))

        return hook

    def _after(self, point: SitePoint) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self._collect(point, output)

        return hook

    def _collect(self, point: SitePoint, value: Any) -> None:
        if self._is_aside:
            return
        if isinstance(value, (tuple, list)):
            value = next((item for item in value if isinstance(item, torch.Tensor)), None)
        if not isinstance(value, torch.Tensor):
            raise RecordError(
                f"site {point.site} of {point.module_name!r} gives no tensor but "
                f"{type(value).__name__}"
            )
        kept, taken = select_positions(value.detach(), self._positions[point])
        self._taken[point] = taken
        self._collected[point].append(kept.to("cpu", copy=True))


def _on_rotated(
    attention: nn.Module, projection: nn.Module, collect: Callable[[torch.Tensor], None]
) -> list[RemovableHandle]:
    """Have `collect` called with queries or keys as a Hugging Face model's attention turns them.

    It is given cosines and sines `(batch, positions, n_rotary)` by the keyword
    `position_embeddings` and turns the first `n_rotary` features of each head, the first half of
    them against the second.
    """
    turns: list[tuple[torch.Tensor, torch.Tensor]] = []
    d_head: Any = attention.head_dim

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        if "position_embeddings" not in kwargs:
            raise RecordError(
                f"site q.rot or k.rot: {type(module).__name__} is given no position_embeddings; "
                "record q and k instead"
            )
        turns[:] = [kwargs["position_embeddings"]]

    def after(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        cos, sin = (turn.unsqueeze(2) for turn in turns[0])  # one for all heads
        heads = output.reshape(*output.shape[:2], -1, d_head)  # (batch, positions, heads, d_head)
        turned, kept = heads.tensor_split([cos.shape[-1]], dim=-1)
        low, high = turned.chunk(2, dim=-1)
        across = torch.cat([-high, low], dim=-1)
        collect(torch.cat([turned * cos + across * sin, kept], dim=-1).flatten(-2))

    return [
        attention.register_forward_pre_hook(before, with_kwargs=True),
        projection.register_forward_hook(after),
    ]


def select_positions(
    value: torch.Tensor, positions: Positions
) -> tuple[torch.Tensor, list[int] | None]:
    """Return an activation's rows at the wanted positions, and which those are.

    Args:
        value: `(batch, positions, …features)`, or `(batch, features)` without positions.
        positions: last, all, or indices.

    Returns:
        A matrix `(batch · taken, features)`, sequence after sequence, and the indices taken
        (None where the activation has no positions).

    Raises:
        RecordError: for a position beyond the sequence.
    """
    if value.ndim < 3:
        return value.reshape(value.shape[0] if value.ndim else 1, -1), None
    length = value.shape[1]
    if positions == "last":
        taken = [length - 1]
    elif positions == "all":
        taken = list(range(length))
    else:
        taken = [int(position) for position in positions]
        if any(position >= length or position < -length for position in taken):
            raise RecordError(
                f"record.activations: positions {taken} do not lie in sequences of {length} tokens"
            )
        taken = [position % length for position in taken]
    kept = value if positions == "all" else value[:, taken]
    return kept.reshape(value.shape[0] * len(taken), -1), taken


def hash_bytes(token_ids: torch.Tensor) -> bytes:
    """Return the bytes that an input hash is taken over: shape, then int64 token ids."""
    ids = token_ids.detach().to("cpu", torch.int64).contiguous()
    return str(list(ids.shape)).encode() + ids.numpy().tobytes()


def resolve(
    model: nn.Module, sites: Iterable[str], layers: tuple[int, ...] | None
) -> list[SitePoint]:
    """Return the points of a model at which sites are recorded, narrowed to some layers.

    Raises:
        RecordError: for an unknown site, or when no layer is left.
    """
    points = []
    for site in sites:
        found = architecture.resolve_site(model, site)
        kept = [point for point in found if layers is None or point.layer in layers]
        if not kept:
            known = sorted({point.layer for point in found if point.layer is not None})
            raise RecordError(f"site {site!r} has no layer {layers}; it has layers {known}")
        points += kept
    return points


def _keys(name: str, infos: Mapping[str, ParameterInfo]) -> dict[str, Any]:
    info = infos.get(name)
    if info is None:  # a persistent buffer
        return {"name": name, "layer": architecture.layer_of(name)}
    return {
        "name": name,
        "layer": info.layer,
        "component": info.component,
        "param": info.param,
    }
