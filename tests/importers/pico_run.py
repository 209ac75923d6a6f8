"""A small run of pico-train, written the way that tool writes it; plain torch, none of pico's code
but the model, whose parameters have pico-train's names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import yaml
from safetensors.torch import save_file
from torch import nn

from pico.config import ModelConfig
from pico.models import build

SUFFIXES = ("attention.v_proj", "attention.o_proj", "swiglu.w_2")
D_MODEL, VOCAB, SEQ_LEN = 24, 40, 8


def config(
    devices: int = 1, sub_batch: int = 3, every: int = 2, max_steps: int = 4
) -> dict[str, Any]:
    return {
        "checkpointing": {
            "run_name": "small",
            "save_every_n_steps": every,
            "learning_dynamics": {
                "batch_size": sub_batch,
                "layer_suffixes": list(SUFFIXES),
                "sequence_idx": -1,
            },
        },
        "data": {
            "dataloader": {"batch_size": 7},
            "dataset": {"name": "some/data"},
            "tokenizer": {"name": "some/tokenizer"},
        },
        "model": {
            "activation_hidden_dim": 32,
            "attention_n_heads": 4,
            "attention_n_kv_heads": 2,
            "d_model": D_MODEL,
            "max_seq_len": SEQ_LEN,
            "n_layers": 2,
            "norm_eps": 1e-6,
            "position_emb_theta": 10000.0,
            "vocab_size": VOCAB,
        },
        "training": {
            "fabric": {"num_devices": devices, "num_nodes": 1, "precision": "32-true"},
            "max_steps": max_steps,
            "optimization": {
                "gradient_accumulation_steps": 1,
                "lr": 0.01,
                "lr_scheduler": "linear_with_warmup",
                "lr_warmup_steps": 1,
                "optimizer": "adamw",
            },
        },
    }


def model() -> nn.Module:
    sizes = ModelConfig(
        d_model=D_MODEL, n_layers=2, n_heads=4, n_kv_heads=2, d_hidden=32, context=SEQ_LEN
    )
    return build(sizes, VOCAB, seed=3)


def captured(net: nn.Module, tokens: torch.Tensor, sub_batch: int) -> dict[str, dict[str, Any]]:
    """Return activations (in order), gradients (summed over sub-batches) and weights by module."""
    modules = {n: m for n, m in net.named_modules() if any(s in n for s in SUFFIXES)}
    outputs: dict[str, list[torch.Tensor]] = {name: [] for name in modules}
    handles = [
        module.register_forward_hook(lambda _, __, out, n=name: outputs[n].append(out[:, -1]))
        for name, module in modules.items()
    ]
    net.zero_grad()
    for batch in tokens.split(sub_batch):
        logits = net(batch[:, :-1])
        nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:]).backward()
    for handle in handles:
        handle.remove()
    return {
        "activations": {n: torch.cat(pieces).detach() for n, pieces in outputs.items()},
        "gradients": {n: m.weight.grad.clone() for n, m in modules.items()},
        "weights": {n: m.weight.detach().clone() for n, m in modules.items()},
    }


def scrambled(activations: torch.Tensor, sub_batch: int) -> torch.Tensor:
    """Return what one device makes of activations."""
    width = activations.shape[1]
    return torch.cat([a.transpose(0, 1).reshape(-1, width) for a in activations.split(sub_batch)])


class Writer:
    """Trains for a few steps and writes what pico-train would."""

    def __init__(
        self, path: Path, devices: int = 1, sub_batch: int = 3, max_steps: int = 4
    ) -> None:
        self.path, self.devices, self.sub_batch = path, devices, sub_batch
        self.config = config(devices, sub_batch, max_steps=max_steps)
        self.model = model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.generator = torch.Generator().manual_seed(5)
        self.val = self.tokens()
        self.truth: dict[tuple[int, str], dict[str, dict[str, torch.Tensor]]] = {}
        self.inputs: dict[int, torch.Tensor] = {}
        self.step = 0
        path.mkdir(parents=True)
        (path / "logs").mkdir()
        (path / "eval_results").mkdir()
        (path / "training_config.yaml").write_text(yaml.safe_dump(self.config))

    def tokens(self) -> torch.Tensor:
        return torch.randint(VOCAB, (7, SEQ_LEN + 1), generator=self.generator)

    def run(self, steps: int) -> Writer:
        for _ in range(steps):
            if self.step % 2 == 0:
                self.checkpoint()
            self.train()
        self.checkpoint(is_last=True)
        return self

    def train(self) -> None:
        tokens = self.inputs.get(self.step, self.tokens())
        if self.step % 2 == 0:
            self.dynamics("train", tokens)
            self.dynamics("val", self.val)
        self.model.zero_grad()
        logits = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
        loss.backward()
        with (self.path / "logs" / "log.log").open("a") as log:
            start = "2025-01-01 00:00:00 - pico-train - INFO - "
            log.write(f"{start}Step {self.step} -- 🔄 Training Metrics\n")
            log.write(f"{start}├── Loss: {loss.item():.4f}\n{start}├── Learning Rate: 1.00e-02\n")
            log.write(f"{start}└── Inf/NaN count: 0\n")
        self.optimizer.step()
        self.step += 1

    @property
    def folder(self) -> Path:
        return self.path / "checkpoints" / f"step_{self.step}"

    def checkpoint(self, is_last: bool = False) -> None:
        if self.folder.exists() and (self.folder / "model.safetensors").exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {f"pico_decoder.{n}": t.clone() for n, t in self.model.state_dict().items()}
        save_file(state, self.folder / "model.safetensors")
        (self.path / "eval_results" / f"step_{self.step}.json").write_text(
            json.dumps({"paloma": 40.5 + self.step})
        )
        if is_last:
            self.dynamics("val", self.val)
            (self.folder / "fabric_state").mkdir()
            saved = {
                "_model": self.model.state_dict(),
                "_optimizer": self.optimizer.state_dict(),
                "_lr_scheduler": {"base_lrs": [0.01], "last_epoch": self.step},
                "_checkpoint_step": self.step,
                "_rng_states": {"torch": torch.get_rng_state(), "python": (3, (1, 2), None)},
            }
            torch.save(saved, self.folder / "fabric_state" / "checkpoint.pt")

    def dynamics(self, split: str, tokens: torch.Tensor) -> None:
        folder = self.folder / "learning_dynamics"
        folder.mkdir(parents=True, exist_ok=True)
        found = captured(self.model, tokens, self.sub_batch)
        self.truth[self.step, split] = found
        if split == "train":
            self.inputs[self.step] = tokens
            (folder / "train_data").mkdir(exist_ok=True)
            table = pa.table({"input_ids": tokens.tolist()})
            file = folder / "train_data" / "data-00000-of-00001.arrow"
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
                out.write_table(table)
        for kind, tensors in found.items():
            if kind == "activations" and self.devices == 1:
                tensors = {n: scrambled(t, self.sub_batch) for n, t in tensors.items()}
            named = {f"_forward_module.{name}": tensor for name, tensor in tensors.items()}
            torch.save(named, folder / f"{split}_{kind}.pt")
