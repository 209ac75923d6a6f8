"""The query library: headers, parameters, and every shipped query on rows checked by hand."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import typer

from pico import metrics
from pico.cli import app
from pico.errors import QueryError
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.sql import library, session, statements
from tests.sql import demo_lake
from tests.sql import small_lake as lake

HEADER = """\
-- name: answer
-- summary: The answer.
-- parameter: step int "the step"
-- parameter: factor float "a factor" default 2.5
-- parameter: who text "who asks" default NULL
-- parameter: loud bool "whether to shout" default false
-- returns: a, b
-- example: pico query answer -p step=1

"""
SQL = "SELECT $step AS a, $factor AS b, $who, $loud"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def make(text: str, name: str = "answer") -> Path:
        path = tmp_path / f"{name}.sql"
        path.write_text(text, encoding="utf-8")
        return path

    return make


def rows(connection: duckdb.DuckDBPyConnection, name: str, **parameters: str) -> list[Any]:
    relation = library.run(connection, library.get_query(name), parameters)
    return statements.fetch(relation).to_pylist()


def test_a_header_becomes_a_query(write: Any) -> None:
    path = write(HEADER + SQL + "\n")
    query = library.parse(path)
    assert (query.name, query.summary, query.sql) == ("answer", "The answer.", SQL)
    assert query.topic == "other"
    assert query.returns == ("a", "b")
    assert query.example == "pico query answer -p step=1"
    assert query.text == HEADER + SQL + "\n"
    assert [(p.name, p.type, p.required, p.default) for p in query.parameters] == [
        ("step", "int", True, None),
        ("factor", "float", False, 2.5),
        ("who", "text", False, None),
        ("loud", "bool", False, False),
    ]
    assert library.list_queries(path.parent) == [query]
    assert library.get_query("answer", path.parent) == query


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("-- summary: The answer.\n", "", r"answer\.sql, line 8: .*lacks '-- summary"),
        ("-- summary: The answer.", "-- summary:", r"line 2: '-- summary:' is no header line"),
        ("-- summary: The answer.", "-- sumary: x", r"line 2: '-- sumary: x' is no header line"),
        ("-- name: answer", "-- name: question", r"line 1: the query is named 'question'"),
        ("-- returns: a, b", "-- name: answer", r"line 7: '-- name: answer' is no header line"),
        ('step int "the step"', "step int", r"line 3: a parameter is: NAME TYPE"),
        ("step int", "step integer", r"line 3: no type 'integer'; types: text, int"),
        ("step int", "Step int", r"line 3: 'Step' cannot name a parameter"),
        ('"the step"', '"the step', r"line 3: .*quotation"),
        ("default 2.5", "default much", r"line 4: default 'much' is no float"),
        ("factor float", "step float", r"line 4: parameter 'step' is declared twice"),
        ("$factor AS b", "$factors AS b", r"line 10: \$factors is not declared"),
        (", $who", "", r"line 1: parameter 'who' is not used"),
    ],
)
def test_a_malformed_header_names_file_and_line(
    write: Any, old: str, new: str, message: str
) -> None:
    text = HEADER + SQL
    assert old in text
    with pytest.raises(QueryError, match=message):
        library.parse(write(text.replace(old, new)))


def test_placeholders_in_comments_and_strings_do_not_count(write: Any) -> None:
    path = write(HEADER + SQL + " -- $other\n, 'it''s $money'")
    assert library.parse(path).name == "answer"


def test_parameters_are_converted(write: Any, connection: duckdb.DuckDBPyConnection) -> None:
    query = library.parse(write(HEADER + SQL))
    given = {"step": "3", "factor": "nan", "who": "1", "loud": "True"}
    found = library.convert(query, given)
    assert found["step"] == 3 and math.isnan(found["factor"])
    assert (found["who"], found["loud"]) == ("1", True)
    relation = library.run(connection, query, {"step": "3"})
    assert statements.fetch(relation).column("a").to_pylist() == [3]


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ({}, [r"needs step \(the step\): -p step="]),
        ({"step": "x"}, ["step takes int, not 'x'"]),
        ({"step": "1", "stepp": "1"}, [r"no parameter 'stepp'\. Did you mean 'step'"]),
        ({"factor": "a", "loud": "b"}, ["needs step", "factor takes float", "loud takes bool"]),
    ],
)
def test_bad_parameters_are_all_named(
    write: Any, given: dict[str, str], messages: list[str]
) -> None:
    query = library.parse(write(HEADER + SQL))
    with pytest.raises(QueryError) as caught:
        library.convert(query, given)
    for message in messages:
        assert re.search(message, str(caught.value))
    assert str(caught.value).startswith("query answer: ")


def test_an_unknown_query_is_answered_with_the_nearest() -> None:
    with pytest.raises(QueryError, match=r"no query 'los'\. Did you mean 'loss'\?.*pico query"):
        library.get_query("los")


NAMES = [query.name for query in library.list_queries()]
OF_TRAINED_RUNS = {  # what they answer stands in test_queries_training
    *("dead_units", "in_context_score", "induction_by_head"),
    *("loss_by_frequency", "loss_by_surprisal", "moments_at_jump"),
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """A lake with the demo's runs, whose first holds some wrong tensors at steps 2 and 8."""
    storage = Storage(str(tmp_path_factory.mktemp("demo") / "lake"))
    weights = demo_lake.replaced("seed-0", 8, demo_lake.SHARD)
    weights[2]["unembed.weight"] = weights[16]["unembed.weight"]
    demo_lake.write(storage, seed_0=weights)
    connection = session.connect(Snapshot.take(storage), threads=1)
    yield connection
    connection.close()


def given(query: library.Query) -> dict[str, str]:
    """Return the parameters of a query's example, read by the command itself."""
    words = shlex.split(query.example)
    assert words[:2] == ["pico", "query"]
    group: Any = typer.main.get_command(app)
    context = group.commands["query"].make_context("query", words[2:])
    assert context.params["name"] == query.name
    return dict(item.split("=", 1) for item in context.params["parameters"] or [])


def test_there_are_queries_for_every_purpose() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 32


@pytest.mark.parametrize("name", NAMES)
def test_every_example_returns_what_the_header_says(
    demo: duckdb.DuckDBPyConnection, name: str
) -> None:
    query = library.get_query(name)
    relation = library.run(demo, query, given(query))
    assert tuple(relation.columns) == query.returns
    assert statements.fetch(relation).num_rows > 0 or name in OF_TRAINED_RUNS


@pytest.mark.parametrize("name", NAMES)
def test_every_query_answers_a_lake_without_rows(name: str) -> None:
    storage = Storage(f"memory://empty-{name}")
    lake.write_data(storage)
    query = library.get_query(name)
    connection = session.connect(Snapshot.take(storage), threads=1)
    relation = library.run(connection, query, given(query))
    assert tuple(relation.columns) == query.returns
    n_rows = statements.fetch(relation).num_rows
    assert n_rows == {"order_equality": 1, "bytes_per_table": 3}.get(name, 0)


def test_a_header_may_say_what_the_query_is_about(write: Any) -> None:
    text = HEADER.replace("-- summary", "-- topic: questions\n-- summary") + SQL
    assert library.parse(write(text)).topic == "questions"
    topics = {query.topic for query in library.list_queries()}
    of_models = {"training", "weights", "gradients", "activations", "attention", "tokens"}
    assert topics == {*of_models, "integrity", "data", "lake"}


def test_a_query_is_described_to_who_calls_it(write: Any) -> None:
    assert library.describe(library.parse(write(HEADER + SQL))).splitlines() == [
        "The answer.",
        "",
        "Parameters, each as -p KEY=VALUE:",
        "  step    int    the step  [required]",
        "  factor  float  a factor  [default: 2.5]",
        "  who     text   who asks  [default: NULL]",
        "  loud    bool   whether to shout  [default: False]",
        "",
        "Returns: a, b",
        "",
        "Example:  pico query answer -p step=1",
    ]


def test_the_listing_goes_by_topic_and_tells_parameters() -> None:
    rows = library.listing()
    assert sorted(row["query"] for row in rows) == NAMES
    topics = [row["topic"] for row in rows]
    assert topics == sorted(topics)
    told = {row["query"]: row["parameters"] for row in rows}
    assert told["order_equality"] == "run other [tokens]"
    assert told["loss"] == "[run]"


def test_headers_are_complete_sentences_that_fit_a_line() -> None:
    for query in library.list_queries():
        assert query.summary.endswith("."), query.name
        assert len(query.summary) <= 100, query.name
        assert all(parameter.description for parameter in query.parameters)


def test_loss(connection: duckdb.DuckDBPyConnection) -> None:
    found = rows(connection, "loss", run="first")
    assert [(row["run"], row["step"], row["heldout_loss"]) for row in found] == [
        ("first", 0, 4.5),
        ("first", 2, None),
        ("first", 5, None),
    ]
    assert [row["loss"] for row in found[:2]] == [4.0, 2.0]
    assert math.isnan(found[2]["loss"])
    assert len(rows(connection, "loss")) == 2 * len(found)


def test_effective_rank_by_layer(connection: duckdb.DuckDBPyConnection) -> None:
    found = rows(connection, "effective_rank_by_layer", run="first")
    assert len(found) == 3 * len(lake.STEPS)  # the vector is left out, the embedding is not
    assert {row["layer"] for row in found} == {None, 0, 1}
    for row in found:
        tensor = lake.weight("first", row["step"], row["name"])
        assert row["effective_rank"] == pytest.approx(metrics.effective_rank(tensor))
        assert row["per"] == pytest.approx(metrics.per(tensor))
    only = rows(connection, "effective_rank_by_layer", run="first", component="o")
    assert [(row["layer"], row["step"]) for row in only] == [
        (layer, step) for layer in (0, 1) for step in lake.STEPS
    ]


def test_sparsity_by_layer(connection: duckdb.DuckDBPyConnection) -> None:
    found = rows(connection, "sparsity_by_layer", run="second")
    assert len(found) == len(lake.WEIGHTS) * len(lake.STEPS)
    for row in found:
        tensor = lake.weight("second", row["step"], row["name"])
        assert row["gini"] == pytest.approx(metrics.gini(tensor))
        assert row["hoyer"] == pytest.approx(metrics.hoyer(tensor))


def test_update_ratio(connection: duckdb.DuckDBPyConnection) -> None:
    found = rows(connection, "update_ratio", run="first")
    assert len(found) == len(lake.WEIGHTS) * (len(lake.STEPS) - 1)
    for row in found:
        a = lake.weight("first", row["step"], row["name"]).astype(np.float64)
        b = lake.weight("first", row["next_step"], row["name"]).astype(np.float64)
        wanted = np.linalg.norm(b - a) / np.linalg.norm(a)
        assert row["update_ratio"] == pytest.approx(wanted)
    frozen = [row["update_ratio"] for row in found if row["name"] == "output_norm.weight"]
    assert frozen == [0.0, 0.0]


def test_cka_to_last(connection: duckdb.DuckDBPyConnection) -> None:
    found = rows(connection, "cka_to_last", run="first")
    assert len(found) == len(lake.SITES) * len(lake.STEPS)
    for row in found:
        x = lake.activation("first", row["step"], row["name"])
        y = lake.activation("first", 5, row["name"])
        assert row["last_step"] == 5
        assert row["cka"] == pytest.approx(metrics.cka(x, y))
    assert len(rows(connection, "cka_to_last", run="first", site="resid.pre")) == len(lake.STEPS)


def test_cka_between_runs(connection: duckdb.DuckDBPyConnection) -> None:
    found = rows(connection, "cka_between_runs", run="first", other="second")
    assert len(found) == len(lake.SITES) * len(lake.STEPS)
    assert sum(row["layer"] is None for row in found) == len(lake.STEPS)
    for row in found:
        x = lake.activation("first", row["step"], row["name"])
        y = lake.activation("second", row["step"], row["name"])
        assert row["cka"] == pytest.approx(metrics.cka(x, y))


def test_text_seen(connection: duckdb.DuckDBPyConnection) -> None:
    found = rows(connection, "text_seen", run="first", step="2")
    assert found == [
        {
            "rank": 0,
            "micro_step": 0,
            "position": 0,
            "dataset": "text",
            "sequence_id": 8,
            "loss": 0.5,
            "text": " bar bar?",  # ends inside a character
        },
        {
            "rank": 0,
            "micro_step": 0,
            "position": 1,
            "dataset": "text",
            "sequence_id": 7,
            "loss": 0.25,
            "text": "café",
        },
    ]
    assert rows(connection, "text_seen", run="first", step="3") == []
