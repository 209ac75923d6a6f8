"""`record` mappings: what each key means by default, and one line for every mistake."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pico import resources
from pico.errors import ConfigError
from pico.record import plan
from pico.record.plan import parse
from pico.record.probeplan import ProbePlan


def test_nothing_asked_is_nearly_nothing_recorded() -> None:
    empty = parse(None)
    assert empty == parse({})
    assert empty.checkpoints.is_never
    assert empty.weights.schedule.is_never
    assert empty.activations == ()
    assert empty.scalars
    assert empty.batches
    assert not empty.pairs
    assert empty.frozen == "once"


def test_the_example_of_the_documentation_parses() -> None:
    indented = str(plan.__doc__).split("    record:\n")[1].split("\n\n")[0]
    example = yaml.safe_load("record:\n" + indented)["record"]
    example["activations"][0]["layers"] = [0]
    parsed = parse(example)
    assert [item.probe for item in parsed.activations] == ["text", None]
    assert parsed.gradients.stages == ("raw", "clipped")
    assert parsed.gradients.names == ("*.o_proj.*",)
    assert parsed.activations[0].positions == "last"
    assert parsed.activations[1].positions == "all"
    assert parsed.pairs
    text, repeat = parsed.probes["text"], parsed.probes["repeat"]
    assert (text.sizes, text.scores) == ({"n_sequences": 16}, ("token_scores",))
    assert text.layer_scores and not repeat.layer_scores
    assert repeat.scores == ("token_scores", "attention") and repeat.schedule.wants(50)
    assert parsed.tensor_stats.keys() == {"weights", "gradients"}
    first, second = parsed.metrics
    assert (first.names, first.wants.names) == (("per", "gini"), ("*.o_proj.*",))
    assert list(first.wants.schedule.planned(50)) == [0, 20, 40, 50]
    assert (second.names, second.tables) == (("frobenius_norm",), ("activations",))
    assert list(second.wants.schedule.planned(250)) == [0, 100, 200, 250]


@pytest.mark.parametrize("name", resources.config_names())
def test_shipped_configs_parse(name: str) -> None:
    loaded = yaml.safe_load(Path(resources.config_path(name)).read_text(encoding="utf-8"))
    assert not parse(loaded["record"]).checkpoints.is_never


@pytest.mark.parametrize("table", plan.TABLES)
def test_whatever_is_recorded_is_recorded_at_the_last_step(table: str) -> None:
    parsed = getattr(parse({table: {"every": 7}}), table)
    assert list(parsed.schedule.planned(9)) == [0, 7, 9]
    assert parse({"checkpoints": [3]}).checkpoints.wants(9, is_last=True)
    (stats,) = parse({"tensor_stats": {table: {"every": 7}}}).tensor_stats.values()
    assert list(stats.schedule.planned(9)) == [0, 7, 9]


@pytest.mark.parametrize(
    ("patterns", "name", "fits"),
    [
        (["*"], "anything", True),
        ("*.o_proj.*", "layers.0.attention.o_proj.weight", True),
        (["*.q_proj.*", "output_norm.*"], "output_norm.weight", True),
        (["*.q_proj.*"], "output_norm.weight", False),
        (["layers.[01].*"], "layers.2.swiglu.w_0.weight", False),
        (["Output_norm.*"], "output_norm.weight", False),
        ([], "output_norm.weight", False),
    ],
)
def test_name_patterns(patterns: Any, name: str, fits: bool) -> None:
    assert parse({"weights": {"every": 1, "names": patterns}}).weights.matches(name) == fits


def test_true_asks_for_the_statistics_of_weights_and_gradients() -> None:
    stats = parse({"tensor_stats": True}).tensor_stats
    assert {table: item.schedule.wants(3) for table, item in stats.items()} == {
        "weights": True,
        "gradients": True,
    }


@pytest.mark.parametrize("spec", ["gini", ["gini"], {"names": "gini"}, [{"names": ["gini"]}]])
def test_metrics_by_default_every_100_steps_of_weights_and_gradients(spec: Any) -> None:
    (item,) = parse({"metrics": spec}).metrics
    assert (item.names, item.tables) == (("gini",), ("weights", "gradients"))
    assert item.wants == dataclasses.replace(
        plan.TensorPlan(), schedule=item.wants.schedule, stages=("raw",)
    )
    assert list(item.wants.schedule.planned(210)) == [0, 100, 200, 210]


@pytest.mark.parametrize("spec", [None, False])
def test_no_metrics(spec: Any) -> None:
    assert parse({"metrics": spec}).metrics == ()


def test_metrics_take_every_schedule() -> None:
    for when, expected in (
        ({"every": 4, "from": 2}, [2, 6, 9]),
        ({"schedule": [1, 3]}, [1, 3, 9]),
        ({"schedule": "pythia"}, [0, 1, 2, 4, 8, 9]),
        ({"schedule": "never"}, []),
    ):
        (item,) = parse({"metrics": {"names": "gini", **when}}).metrics
        assert list(item.wants.schedule.planned(9)) == expected


def test_one_activation_needs_no_list() -> None:
    (item,) = parse({"activations": {"sites": "z", "schedule": [1]}}).activations
    assert (item.sites, item.probe, item.positions) == (("z",), None, "last")
    (item,) = parse({"activations": [{"sites": ["z"], "positions": 3, "layers": 1}]}).activations
    assert (item.positions, item.layers) == ((3,), (1,))
    assert item.schedule.wants(5)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "record must be a mapping, not []"),
        ({"weigths": 1}, "unknown config key 'record.weigths'. Did you mean 'weights'?"),
        ({"weights": {"name": "x"}}, "unknown config key 'record.weights.name'."),
        (
            {"weights": {"every": 2, "schedule": "pythia"}},
            "record.weights: give either schedule or every, not both",
        ),
        ({"weights": {"names": 3}}, "record.weights.names must be a list of words, not 3"),
        (
            {"gradients": {"stages": ["clippd"]}},
            "record.gradients.stages: no stage 'clippd'. Did you mean 'clipped'?",
        ),
        ({"activations": "z"}, "record.activations[0] must be a mapping with sites"),
        ({"activations": [{"probe": "text"}]}, "record.activations[0] needs sites"),
        (
            {"activations": [{"sites": ["z"]}, {"sites": ["q"], "positions": "first"}]},
            "record.activations[1].positions must be a list of whole numbers, not 'first'",
        ),
        (
            {"activations": {"sites": ["z"], "layers": [True]}},
            "record.activations[0].layers must be a list of whole numbers",
        ),
        ({"activations": {"sites": ["z"], "probe": 3}}, "record.activations[0].probe must be"),
        ({"activations": 3}, "record.activations[0] must be a mapping"),
        ({"tensor_stats": 3}, "record.tensor_stats must map tables to schedules, not 3"),
        (
            {"tensor_stats": {"gradient": True}},
            "unknown config key 'record.tensor_stats.gradient'. Did you mean 'gradients'?",
        ),
        ({"scalars": 1}, "record.scalars must be true or false, not 1"),
        ({"pairs": "yes"}, "record.pairs must be true or false, not 'yes'"),
        ({"frozen": True}, "record.frozen must be once or always, not True"),
        ({"commit_every": 0}, "record.commit_every must be a whole number of at least 1, not 0"),
        ({"probes": ["text"]}, "record.probes must map probes to their settings"),
        ({"probes": {"text": {"n": 3}}}, "unknown config key 'record.probes.text.n'."),
        (
            {"probes": {"text": {"n_sequences": -1}}},
            "record.probes.text.n_sequences must be a whole number of at least 1, not -1",
        ),
        (
            {"probes": {"text": {"every": 5}}},
            "record.probes.text.every is about scores; say which: record: [token_scores, attent",
        ),
        (
            {"probes": {"text": {"record": ["token_score"]}}},
            "record.probes.text.record: no score 'token_score'. Did you mean 'token_scores'",
        ),
        (
            {"probes": {"text": {"record": ["attention"], "layer_scores": 1}}},
            "record.probes.text.layer_scores must be true or false, not 1",
        ),
        ({"probes": {"text": 5}}, "record.probes.text must be a mapping, not 5"),
        (
            {"metrics": ["ginni"]},
            "record.metrics.names: no metric 'ginni'. Did you mean 'gini'? List them: pico metrics",
        ),
        (
            {"metrics": [{"names": ["gini"]}, {"names": ["per", "cka"]}]},
            "record.metrics[1].names: 'cka' compares two tensors, and training has one at a time; ",
        ),
        (
            {"metrics": {"names": "gini", "tables": ["weight"]}},
            "record.metrics.tables: no table 'weight'. Did you mean 'weights'? Use weights, grad",
        ),
        (
            {"metrics": {"names": "gini", "stages": ["cliped"]}},
            "record.metrics.stages: no stage 'cliped'. Did you mean 'clipped'? Use raw, clipped",
        ),
        ({"metrics": {"names": []}}, "record.metrics needs names, for example names: [per, gini]"),
        ({"metrics": {"every": 5}}, "record.metrics needs names, for example names: [per, gini]"),
        ({"metrics": {"metrics": "gini"}}, "unknown config key 'record.metrics.metrics'."),
        ({"metrics": {"names": "gini", "every": 0}}, "record.metrics.every must be a whole"),
        *(
            (
                {"metrics": spec},
                "record.metrics must be names of metrics, a mapping with names, or a list of such "
                f"mappings, not {spec!r}",
            )
            for spec in (True, 3, [], ["gini", {"names": "per"}], [3])
        ),
        (
            {"metrics": {"names": "gini", "tables": "activations"}},
            "record.metrics measures activations at the sites of record.activations, and there are "
            "none; list some there",
        ),
        (
            {"probes": {"txt": {}}},
            "record.probes: probe 'txt' cannot take settings; built in: text, repeat",
        ),
    ],
)
def test_mistakes_are_one_line_that_names_the_key(record: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(record)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"weights": "pythai", "pairs": 3, "scalar": True})
    message = str(caught.value)
    assert all(key in message for key in ("record.weights", "record.pairs", "'record.scalar'"))


YAML = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 300),
        st.floats(),
        st.sampled_from(["pythia", "last", "*", "text", "every", "once", ""]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["every", "names", "sites", "probe", "positions", "layers", "schedule", "text", 3]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
KEYS = [field.name for field in dataclasses.fields(plan.RecordPlan)]


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from([*KEYS, "unknown", 3]), YAML, max_size=3))
def test_whatever_yaml_says_is_a_plan_or_a_config_error(record: dict[Any, Any]) -> None:
    try:
        assert isinstance(parse(record), plan.RecordPlan)
    except ConfigError as error:
        assert "\n" not in str(error)


def test_seed_0_is_a_seed() -> None:
    assert parse({"probes": {"repeat": {"seed": 0}}}).probes == {"repeat": ProbePlan({"seed": 0})}


def test_scores_have_a_schedule_of_their_own() -> None:
    plan = parse({"probes": {"mine": {"record": "token_scores"}}}).probes["mine"]
    assert [step for step in range(301) if plan.schedule.wants(step)] == [0, 100, 200, 300]
    assert plan.schedule.wants(7, True)
    plan = parse({"probes": {"text": {"record": "attention", "schedule": [3]}}}).probes["text"]
    assert [step for step in range(9) if plan.schedule.wants(step)] == [3]
