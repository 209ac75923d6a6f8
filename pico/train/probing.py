"""The built-in probes of a run: `text` from held-out rows, `repeat` from random tokens said twice.

The trainer asks for those that its plan names; other loops make theirs with `pico.record.probes`.
"""

from __future__ import annotations

from pico.config import RunConfig
from pico.data.corpus import Corpus
from pico.data.loader import SequenceReader
from pico.errors import ConfigError, did_you_mean
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.record import probes
from pico.record.plan import RecordPlan
from pico.record.probeplan import PROBES, ProbePlan
from pico.record.probes import Probe


def check(plan: RecordPlan) -> None:
    """Refuse probes that training has no tokens for, before anything is prepared.

    Raises:
        ConfigError: naming one, and those that there are.
    """
    named = {item.probe for item in plan.activations if item.probe}
    for name in sorted({*named, *plan.probes} - set(PROBES)):
        where = "record.activations" if name in named else "record.probes"
        raise ConfigError(
            f"{where}: pico train has no probe {name!r}, but {', '.join(PROBES)}."
            f"{did_you_mean(name, PROBES)} A file is probed afterwards: pico probe RUN --probe FILE"
        )


def built_in(storage: Storage, plan: RecordPlan, config: RunConfig, corpus: Corpus) -> list[Probe]:
    """Make the built-in probes that a plan asks for; without held-out rows there is no `text`."""
    names = {item.probe for item in plan.activations if item.probe} | set(plan.probes)
    made = []
    for name in sorted(names & set(PROBES)):
        settings = plan.probes.get(name, ProbePlan()).sizes
        n = settings.get("n_sequences", 8)
        seq_len = min(settings.get("seq_len", config.data.seq_len), config.data.seq_len)
        if name == "repeat":
            vocab, seed = corpus.tokenizer.vocab_size, settings.get("seed", 0)
            made.append(probes.repeat(vocab, seq_len, n, seed, corpus.dataset))
        elif corpus.heldout is not None:
            reader = SequenceReader(Snapshot.take(storage), corpus.heldout)
            ids = list(range(min(n, reader.n_sequences)))
            tokens = reader.rows(ids)[:, :seq_len]
            text = probes.make("text", tokens, corpus.heldout, ids)
            made.append(probes.masked(text, reader.counted(ids)))
    return made
