import ast
import dataclasses
import inspect
import typing
from pathlib import Path

import pytest
import yaml

from pico import config, resources
from pico.config import RunConfig, as_mapping, load
from pico.errors import ConfigError

SECTIONS = [
    item
    for _, item in inspect.getmembers(config, inspect.isclass)
    if dataclasses.is_dataclass(item)
]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def fields(cls: type, prefix: str = "") -> list[tuple[str, typing.Any, typing.Any]]:
    """Dotted key, type and default of every plain field below a config class."""
    found = []
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[item.name]):
            found += fields(hints[item.name], f"{prefix}{item.name}.")
        elif item.name != "record":
            found.append((prefix + item.name, hints[item.name], item.default))
    return found


def get(run: RunConfig, key: str):
    value = run
    for name in key.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("cls", SECTIONS, ids=lambda cls: cls.__name__)
def test_every_field_is_documented(cls):
    (body,) = ast.parse(inspect.getsource(cls)).body
    after = dict(zip(body.body, body.body[1:], strict=False))
    for node in body.body:
        if isinstance(node, ast.AnnAssign):
            following = after.get(node)
            assert isinstance(following, ast.Expr), node.target.id
            assert isinstance(following.value.value, str), node.target.id
            assert following.value.value.endswith("."), node.target.id
    assert cls.__dataclass_params__.frozen


def test_the_keys_that_the_interface_fixes():
    names = {item.name for item in dataclasses.fields(RunConfig)}
    assert {"seeds", "max_steps", "data", "model", "record"} <= names


OTHER_VALUES = {
    "data.source": "book.txt",
    "data.name": "book",
    "data.tokenizer": "tokenizer.json",
    "data.heldout_fraction": 0.5,
    "data.max_bytes": 5,
    "model.architecture": "pico-decoder",
    "model.d_model": 96,
    "model.n_heads": 6,
    "model.n_kv_heads": 2,
    "model.d_hidden": 7,
    "model.vocab_size": 11,
    "model.dropout": 0.5,
    "model.attn_implementation": "eager",
    "optimizer.betas": [0.5, 0.25],
    "optimizer.schedule": "cosine",
    "optimizer.max_grad_norm": None,
    "optimizer.min_lr_ratio": 0.25,
    "batch.micro_size": 2,
    "precision": "bf16-true",
    "accelerator": "cpu",
}


@pytest.mark.parametrize("key", [key for key, _, _ in fields(RunConfig)])
def test_every_field_can_be_set(key):
    default = get(RunConfig(), key)
    value = OTHER_VALUES[key] if key in OTHER_VALUES else default * 2 or 3
    sizes = ["model.d_model=96", "model.n_heads=12", "model.n_kv_heads=2"]
    run = load({}, [*sizes, f"{key}={yaml.safe_dump(value, default_flow_style=True)}"])
    assert get(run, key) == (tuple(value) if isinstance(value, list) else value)
    if key != "model.architecture":
        assert get(run, key) != default


def test_the_defaults_are_those_of_pico_train():
    model = load({}).model
    assert (model.d_model, model.n_layers, model.n_heads, model.n_kv_heads) == (768, 12, 12, 4)
    assert (model.hidden, model.context, model.rope_theta, model.norm_eps) == (
        3072,
        2048,
        1e4,
        1e-6,
    )
    assert model.d_head == 64


def test_files_names_and_mappings(tmp_path):
    path = write(tmp_path, "max_steps: 7\nseeds: {init: 3}\nrecord: {weights: {every: 5}}\n")
    run = load(path)
    assert run == load(str(path)) == load(yaml.safe_load(path.read_text()))
    assert (run.max_steps, run.seeds.init, run.seeds.data) == (7, 3, 0)
    assert run.record == {"weights": {"every": 5}}
    assert load("nano").model.n_layers == 4


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}", "seeds:\nrecord:\nmodel: ~\n"])
def test_empty_files_and_sections_are_the_defaults(tmp_path, text):
    assert load(write(tmp_path, text)) == RunConfig()


@pytest.mark.parametrize("name", resources.config_names())
def test_shipped_configs_load_and_come_back(name):
    run = load(name)
    stored = yaml.safe_load(yaml.safe_dump(as_mapping(run)))
    assert load(stored) == run


def test_as_mapping_is_plain_and_comes_back():
    run = load({"record": {"weights": {"at": (1, 2)}}, "optimizer": {"betas": [0.1, 0.2]}})
    mapping = as_mapping(run)
    assert mapping["optimizer"]["betas"] == [0.1, 0.2]
    assert mapping["record"] == {"weights": {"at": [1, 2]}}
    assert as_mapping(load(mapping)) == mapping
    assert list(mapping) == [item.name for item in dataclasses.fields(RunConfig)]


def test_overrides_win_and_leave_the_mapping_alone():
    given = {"seeds": {"init": 1, "data": 2}, "record": {"weights": {"every": 5}}}
    overrides = ["seeds.init=7", "record.weights.every=9", "data.source=a=b", "data.name="]
    run = load(given, overrides)
    assert (run.seeds.init, run.seeds.data) == (7, 2)
    assert run.record == {"weights": {"every": 9}}
    assert (run.data.source, run.data.name) == ("a=b", None)
    assert given == {"seeds": {"init": 1, "data": 2}, "record": {"weights": {"every": 5}}}
    assert load(given, ["seeds=", "seeds.init=4", "seeds.init=5"]).seeds.init == 5


@pytest.mark.parametrize(
    ("text", "value"), [("3e-4", 3e-4), ("1", 1.0), ("'0.5'", 0.5), ("1E1", 10)]
)
def test_numbers_that_yaml_reads_as_something_else(text, value):
    lr = load({}, [f"optimizer.lr={text}"]).optimizer.lr
    assert (lr, type(lr)) == (value, float)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"max_step": 5}, r"unknown config key 'max_step'. Did you mean 'max_steps'\?"),
        (
            {"model": {"n_layer": 5}},
            r"unknown config key 'model.n_layer'. Did you mean 'n_layers'\?",
        ),
        ({"zzz": 5}, r"unknown config key 'zzz'\.$"),
        ({1: 5}, r"unknown config key '1'"),
        ({"max_steps": "many"}, r"max_steps must be of type int, not 'many'"),
        ({"max_steps": 1.5}, r"max_steps must be of type int, not 1.5"),
        ({"max_steps": True}, r"max_steps must be of type int, not True"),
        ({"max_steps": None}, r"max_steps must be of type int, not None"),
        ({"max_steps": 0}, r"max_steps must be at least 1, not 0"),
        ({"optimizer": {"lr": "fast"}}, r"optimizer.lr must be a finite number, not 'fast'"),
        ({"optimizer": {"lr": True}}, r"optimizer.lr must be a finite number, not True"),
        ({"optimizer": {"lr": [1]}}, r"optimizer.lr must be a finite number, not \[1\]"),
        ({"optimizer": {"lr": float("nan")}}, r"optimizer.lr must be a finite number, not nan"),
        ({"optimizer": {"lr": 10**400}}, r"optimizer.lr must be a finite number, not 1000"),
        ({"optimizer": {"betas": 0.9}}, r"optimizer.betas must be a list of 2 numbers, not 0.9"),
        ({"optimizer": {"betas": [0.9]}}, r"optimizer.betas must be a list of 2 numbers"),
        ({"optimizer": {"betas": [0.9, "b"]}}, r"optimizer.betas must be a finite number, not 'b'"),
        (
            {"optimizer": {"schedule": "cosin"}},
            r"one of linear, .*'cosin'. Did you mean 'cosine'\?",
        ),
        ({"optimizer": {"schedule": ["cosine"]}}, r"must be one of linear, cosine, constant"),
        ({"data": {"source": 5}}, r"data.source must be of type str, not 5"),
        ({"data": {"name": []}}, r"data.name must be of type str, not \[\]"),
        ({"data": []}, r"data must be a mapping, not \[\]"),
        ({"data": "stdlib"}, r"data must be a mapping, not 'stdlib'"),
        ({"record": ["weights"]}, r"record must be a mapping, not \['weights'\]"),
        ({"data": {"seq_len": 4096}}, r"seq_len 4096 must lie between 1 and model.context 2048"),
        ({"model": {"d_model": 100}}, r"d_model 100 is not a multiple of n_heads 12"),
        ({"model": {"n_kv_heads": 5}}, r"n_heads 12 is not a multiple of n_kv_heads 5"),
        ({"model": {"d_model": 36}}, r"d_model / n_heads = 3 is odd"),
        ({"model": {"n_layers": 0}}, r"model.n_layers must be between 1 and 2147483647, not 0"),
        ({"model": {"dropout": 1.0}}, r"dropout must lie in \[0, 1\), not 1.0"),
        ({"model": {"architecture": "gpt"}}, r"architecture 'gpt' cannot be trained"),
        ({"batch": {"size": 0}}, r"batch.size must be at least 1, not 0"),
        ({"batch": {"size": 8, "micro_size": 3}}, r"micro_size 3 does not divide batch.size 8"),
    ],
)
def test_wrong_configs(mapping, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load(mapping)
    assert "\n" not in str(caught.value)


def test_all_problems_are_told_at_once():
    wrong = {
        "max_stps": 1,
        "seeds": {"init": "x", "dat": 1},
        "model": {"dropout": 2},
        "optimizer": {"lr": "fast"},
    }
    with pytest.raises(ConfigError) as caught:
        load(wrong, ["batch.size=0"])
    message = str(caught.value)
    for problem in ("max_stps", "seeds.init", "seeds.dat", "dropout", "optimizer.lr", "batch.size"):
        assert problem in message
    assert message.count("; ") == 5


@pytest.mark.parametrize("override", ["seeds.init", "=5", "", "seeds init 5"])
def test_overrides_need_a_key_and_a_value(override):
    with pytest.raises(ConfigError, match="is not of the form key=value"):
        load({}, [override])


@pytest.mark.parametrize(
    "value", ["[1", "{a: b", "'x", "2024-99-99", "!!python/name:os.system", "@"]
)
def test_overrides_with_bad_yaml(value):
    with pytest.raises(ConfigError, match=r"the value of override .* is not valid YAML") as caught:
        load({}, [f"data.name={value}"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "key", ["seed.init", "seeds.init.x", "seeds..init", ".seeds", "model.dmodel"]
)
def test_overrides_of_unknown_keys(key):
    with pytest.raises(ConfigError, match=r"unknown config key|must be of type int"):
        load({}, [f"{key}=7"])


@pytest.mark.parametrize(
    "text",
    ["a: [1", "a: b: c", "\t- x", "when: 2024-99-99", "a: !!python/object:os.x {}", "[" * 5000],
)
def test_files_that_are_no_yaml(tmp_path, text):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=r"run.yaml is not valid YAML: ") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_text(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load(path)


@pytest.mark.parametrize("text", ["- a", "5", "just words"])
def test_files_that_hold_no_pairs(tmp_path, text):
    with pytest.raises(ConfigError, match=r"must hold key: value pairs, not a (list|int|str)"):
        load(write(tmp_path, text))


@pytest.mark.parametrize(
    "name", ["nani", "no/such.yaml", "../nano", "", ".", "x" * 5000, "a\0b"], ids=ascii
)
def test_files_that_are_absent(name):
    with pytest.raises(ConfigError, match=r"no config file or shipped config .* Shipped: .*nano"):
        load(name)


def test_a_near_name_is_offered():
    with pytest.raises(ConfigError, match=r"shipped config 'nanno'. Did you mean 'nano'\?"):
        load("nanno")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr=-1", "optimizer.lr must be between 0.0 and 1000000000.0, not -1.0"),
        ("optimizer.betas=[0.9, 1.0]", "optimizer.betas must lie in [0, 1), not [0.9, 1.0]"),
        ("optimizer.min_lr_ratio=2", "optimizer.min_lr_ratio must be between 0.0 and 1.0, not 2.0"),
        ("data.heldout_fraction=1", "data.heldout_fraction must be between 0.0 and 0.99, not 1.0"),
        ("data.vocab_size=100", "data.vocab_size must be between 257 and 2147483647, not 100"),
        ("seeds.data=-1", "seeds.data must be between 0 and 4294967295, not -1"),
        ("evaluate.every=-1", "evaluate.every must be at least 0, not -1"),
    ],
)
def test_values_out_of_range_are_refused(override, message):
    with pytest.raises(ConfigError) as caught:
        load({}, [override])
    assert str(caught.value) == message
