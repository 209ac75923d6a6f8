"""The schema files as DESIGN 3 promises them, read as JSON and as the code reads them."""

import json
import re
from pathlib import Path

import pytest

from pico import schema

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "schemas").glob("*.json"))

TENSOR = "name layer? component? param? expert? part n_parts dtype shape content_hash value? raw?"
METRIC = (
    "table_name name layer? component? param? head? site? state? stage? probe? "
    "ref_run? ref_step? ref_name? tensor_hash metric_version"
)
PROMISED = {
    "weights": TENSOR,
    "gradients": f"{TENSOR} stage probe? input_hash?",
    "optimizer": f"{TENSOR} state",
    "activations": f"{TENSOR} probe? input_hash? site dataset? sequence_ids? positions?",
    "tensor_stats": "table_name name layer? component? param? expert? stage? state? site? probe? "
    "content_hash? numel frobenius_norm? mean? std? max_abs? nonfinite",
    "parameters": "name layer? component? param? shape dtype numel trainable param_group? "
    "alias_of? n_heads? n_kv_heads? d_head? init? hf_name? tl_name?",
    "runs": "run_uuid created_at parent_run? parent_step? suite? family? n_params? "
    "n_params_non_embedding? n_layers? d_model? n_heads? n_kv_heads? d_head? vocab_size? seq_len? "
    "batch_size? tokens_per_step? seed_init? seed_data? seed_dropout? dataset? tokenizer? config? "
    "code_version? library_versions?",
    "checkpoints": "tokens? planned scheduler? rng_torch? rng_cuda? rng_numpy? rng_python? "
    "complete",
    "scalars": "name value?",
    "param_groups": "group lr? weight_decay? settings?",
    "batches": "rank micro_step position dataset? sequence_id loss?",
    "sequences": "sequence_id tokens doc_ids? doc_starts? origin?",
    "documents": "doc_id origin? uri? n_tokens?",
    "datasets": "uri? n_sequences seq_len tokenizer? fingerprint",
    "vocab": "token_id bytes? text count?",
    "probes": "probe input_hash sequence_id tokens",
    "token_scores": "probe sequence_id position token_id target_id layer? loss? entropy? rank? "
    "top1_id?",
    "evaluations": "tokens? task metric n_shot? value? stderr? n_samples? engine? engine_version? "
    "source_file? content_hash?",
    "metrics": f"{METRIC} metric args? value?",
    "spectra": f"{METRIC} singular_values",
    "sequence_scores": "dataset sequence_id score value?",
    "log": "action table path rows bytes hash schema_version min_step? max_step? txn",
}
DATA = {"sequences", "documents", "datasets", "probes"}
WITHOUT_STEP = {"runs", "parameters"}


def test_there_is_a_file_for_every_table_of_the_design():
    assert {path.stem for path in FILES} == PROMISED.keys()
    assert schema.tables().keys() == PROMISED.keys() - {"log"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_complete_and_consistent(path):
    spec = json.loads(path.read_text(encoding="utf-8"))
    assert spec.keys() - {"history", "questions"} == {
        *("name", "version", "kind", "description", "partition", "primary_key", "sort", "columns")
    }
    assert spec["name"] == path.stem
    assert spec["version"] == 1 + len(spec.get("history", []))
    assert spec["kind"] in ("tensor", "rows", "data", "vocab", "log")
    columns = {column["name"]: column for column in spec["columns"]}
    assert len(columns) == len(spec["columns"])
    assert {*spec["primary_key"], *spec["sort"]} <= columns.keys()
    for column in spec["columns"]:
        assert column.keys() - {"unit"} == {"name", "type", "nullable", "description"}
        assert isinstance(column["nullable"], bool)
        assert re.fullmatch(r"[a-z][a-z0-9_]*", column["name"])
        assert column["description"].strip() == column["description"]
        assert column["description"].endswith((".", "…"))
    assert spec["description"].endswith(".")


@pytest.mark.parametrize("name", PROMISED)
def test_a_table_has_the_columns_of_the_design(name):
    spec = schema.log() if name == "log" else schema.table(name)
    keys = []
    if "run" in spec.partition:
        keys = ["run_id"] if name in WITHOUT_STEP else ["run_id", "global_step"]
    elif name != "log":
        keys = ["tokenizer_id" if name == "vocab" else "dataset_id"]
    found = {column.name + "?" * column.nullable for column in spec.columns}
    assert found == {*keys, *PROMISED[name].split(), "extra?"}
    assert spec.column_names[: len(keys)] == keys
    assert spec.column_names[-1] == "extra"


@pytest.mark.parametrize("name", sorted(PROMISED.keys() - {"log"}))
def test_partition_and_primary_key_of_a_table(name):
    spec = schema.table(name)
    if spec.kind == "tensor":
        assert spec.partition == ("run", "step")
        assert spec.primary_key[-1] == spec.sort[-1] == "part"
    elif name in DATA:
        assert spec.partition == ("dataset",)
    else:
        assert spec.partition == (("tokenizer",) if name == "vocab" else ("run",))
    assert tuple(spec.path_columns) == spec.partition
    assert spec.primary_key[: len(spec.path_columns)] == tuple(spec.path_columns.values())
    for column in spec.path_columns.values():
        assert not next(item for item in spec.columns if item.name == column).nullable


JOINED = (
    "run_id global_step name layer component param expert head site state stage probe dataset_id "
    "dataset sequence_id sequence_ids positions token_id tokenizer content_hash input_hash "
    "table_name metric task extra"
)


@pytest.mark.parametrize("column", JOINED.split())
def test_columns_that_joins_meet_on_have_one_type(column):
    kinds = {
        item.type
        for spec in schema.tables().values()
        for item in spec.columns
        if item.name == column
    }
    assert len(kinds) == 1


def test_no_type_that_a_reader_cannot_open():
    for spec in schema.tables().values():
        for column in spec.columns:
            if column.type == "binary":
                assert column.name in ("raw", "bytes") or column.name.startswith("rng_")
            assert "float16" not in column.type


def test_the_generated_page_is_not_stale():
    stored = (ROOT / "schemas" / "README.md").read_text(encoding="utf-8")
    assert stored == schema.markdown(), "run `make schemas`"
