"""The loss against plain torch: bit for bit below the limit, to rounding above it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pico.config import ModelConfig
from pico.models import PicoDecoder, build, language_model_loss, loss

VOCAB = 97
CONFIG = ModelConfig(d_model=48, n_layers=2, n_heads=6, n_kv_heads=2, context=32)


@pytest.fixture
def chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven tokens at a time, so that 4 × 30 tokens do not divide evenly."""
    monkeypatch.setattr(loss, "MAX_LOGITS", 7 * VOCAB + 5)


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(VOCAB, (4, 31), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1], ids[:, 1:]


def plain(model: PicoDecoder, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def gradients(model: PicoDecoder) -> dict[str, torch.Tensor]:
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def worst(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(((a[name] - b[name]).norm() / b[name].norm()).item() for name in a)


def test_plain_path_is_the_plain_expression_bit_for_bit() -> None:
    model = build(CONFIG, VOCAB)
    x, y = batch()
    expected = plain(model, x, y)
    expected.backward()
    wanted = gradients(model)
    mean, per_sequence = language_model_loss(model, x, y)
    mean.backward()
    assert torch.equal(mean, expected)
    assert all(torch.equal(a, wanted[name]) for name, a in gradients(model).items())
    losses = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(dim=1)
    assert per_sequence.shape == (4,)
    assert not per_sequence.requires_grad
    torch.testing.assert_close(per_sequence, losses.detach())


@pytest.mark.usefixtures("chunked")
def test_chunked_path_equals_the_plain_one() -> None:
    model = build(CONFIG, VOCAB)
    x, y = batch()
    expected = plain(model, x, y)
    expected.backward()
    wanted = gradients(model)
    mean, per_sequence = language_model_loss(model, x, y)
    mean.backward()
    assert worst(gradients(model), wanted) <= 1e-6
    torch.testing.assert_close(mean, expected, rtol=1e-6, atol=0)
    losses = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(dim=1)
    torch.testing.assert_close(per_sequence, losses.detach(), rtol=1e-6, atol=0)


@pytest.mark.usefixtures("chunked")
def test_chunked_path_in_float64_and_with_large_logits() -> None:
    model = build(CONFIG, VOCAB).double()
    with torch.no_grad():
        model.de_embedding_proj.weight.mul_(500)  # exp of the bare logits would overflow
    x, y = batch()
    plain(model, x, y).backward()
    wanted = gradients(model)
    language_model_loss(model, x, y)[0].backward()
    assert worst(gradients(model), wanted) <= 1e-13
    single = model.float()
    mean, _ = language_model_loss(single, x, y)
    mean.backward()
    assert worst(gradients(single), {k: v.float() for k, v in wanted.items()}) <= 1e-5


@pytest.mark.usefixtures("chunked")
def test_chunked_path_under_accumulation_and_scaling() -> None:
    model = build(CONFIG, VOCAB)
    for seed in (0, 1):
        (plain(model, *batch(seed)) / 2).backward()
    wanted = gradients(model)
    for seed in (0, 1):
        (language_model_loss(model, *batch(seed))[0] / 2).backward()
    assert worst(gradients(model), wanted) <= 1e-6


@pytest.mark.usefixtures("chunked")
def test_chunked_path_without_gradients() -> None:
    model = build(CONFIG, VOCAB)
    x, y = batch()
    with torch.no_grad():
        mean, _ = language_model_loss(model, x, y)
        torch.testing.assert_close(mean, plain(model, x, y), rtol=1e-6, atol=0)
    assert not mean.requires_grad
    model.de_embedding_proj.requires_grad_(False)
    plain(model, x, y).backward()
    wanted = gradients(model)
    language_model_loss(model, x, y)[0].backward()
    found = gradients(model)
    assert "de_embedding_proj.weight" not in found
    assert worst(found, wanted) <= 1e-6
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is model.de_embedding_proj.weight)
    plain(model, x, y).backward()
    wanted = gradients(model)
    language_model_loss(model, x, y)[0].backward()
    assert worst(gradients(model), wanted) <= 1e-6


@pytest.mark.parametrize("limit", [2**24, 7 * VOCAB])
def test_bfloat16_autocast(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(CONFIG, VOCAB)
    x, y = batch()
    plain(model, x, y).backward()
    wanted = gradients(model)
    monkeypatch.setattr(loss, "MAX_LOGITS", limit)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mean, per_sequence = language_model_loss(model, x, y)
    mean.backward()
    found = gradients(model)
    assert mean.dtype == per_sequence.dtype == torch.float32
    assert all(gradient.dtype == torch.float32 for gradient in found.values())
    assert 1e-5 < worst(found, wanted) < 0.03


@pytest.mark.parametrize("limit", [2**24, 7 * VOCAB])
def test_bfloat16_weights(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(CONFIG, VOCAB)
    x, y = batch()
    expected = plain(model, x, y).item()
    monkeypatch.setattr(loss, "MAX_LOGITS", limit)
    mean, _ = language_model_loss(model.bfloat16(), x, y)
    mean.backward()
    assert abs(mean.item() - expected) < 0.01
    assert all(parameter.grad.dtype == torch.bfloat16 for parameter in model.parameters())


@pytest.mark.parametrize("limit", [2**24, 7 * VOCAB])
def test_mask_and_ignored_targets(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "MAX_LOGITS", limit)
    model = build(CONFIG, VOCAB)
    x, y = batch()
    mask = torch.rand(y.shape, generator=torch.Generator().manual_seed(2)) < 0.5
    mask[1] = False
    tokens = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
    tokens[mask].mean().backward()
    wanted = gradients(model)
    mean, per_sequence = language_model_loss(model, x, y, mask)
    mean.backward()
    assert worst(gradients(model), wanted) <= 1e-6
    torch.testing.assert_close(mean, tokens[mask].mean())
    torch.testing.assert_close(per_sequence[0], tokens[0][mask[0]].mean().detach())
    assert per_sequence[1].isnan()
    again, _ = language_model_loss(model, x, y.masked_fill(~mask, -100))
    assert torch.equal(again, mean)
    nothing, _ = language_model_loss(model, x, y, torch.zeros_like(mask))
    assert nothing.isnan()


@pytest.mark.usefixtures("chunked")
def test_hooks_inside_the_model_fire_in_the_chunked_path() -> None:
    model = build(CONFIG, VOCAB)
    fired = []
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: fired.append(name))
    language_model_loss(model, *batch())
    silent = {name for name, _ in model.named_modules()} - set(fired)
    assert silent == {"", "layers", "de_embedding_proj"}


def test_logits_are_never_held_whole() -> None:
    """The largest tensor made by the chunked path stays within the limit."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    vocab = 40_000
    model = build(ModelConfig(d_model=8, n_layers=1, n_heads=2, n_kv_heads=1, context=300), vocab)
    ids = torch.randint(vocab, (2, 251), generator=torch.Generator().manual_seed(0))
    with Watch():
        language_model_loss(model, ids[:, :-1], ids[:, 1:])[0].backward()
    assert vocab * 400 < largest <= loss.MAX_LOGITS < 500 * vocab
