"""The query library: `queries/*.sql`, SQL files with a header that says how to call them.

    -- name: loss
    -- topic: training
    -- summary: Loss and held-out loss by step.
    -- parameter: run text "the run" default NULL
    -- returns: run, step, loss, heldout_loss
    -- draws: loss, heldout_loss
    -- needs: scalars: record.scalars
    -- example: pico query loss -p run=tiny

`pico query` lists, shows and runs them. Parameters are prepared parameters of DuckDB (`$run`),
converted by their declared type, never pasted into the text. `draws` names the columns that
`pico plot` shows (`nothing`: rows to be read), `needs` says what has to be recorded. These two and
the topic, under which queries are listed, may be left out. A header that does not hold together is
an error that names file and line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from pico import resources
from pico.errors import QueryError, did_you_mean, one_line
from pico.sql import statements

_HEADER = re.compile(r"--\s*(?P<key>[a-z]+):\s*(?P<value>.*?)\s*")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_PLACEHOLDER = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\$([A-Za-z_][A-Za-z0-9_]*)")
_KEYS = ("name", "topic", "summary", "returns", "draws", "needs", "example")
_OPTIONAL = ("topic", "draws", "needs")
_BOOLEANS = {"true": True, "false": False}
_CONVERT: dict[str, Callable[[str], Any]] = {
    "text": str,
    "int": int,
    "float": float,
    "bool": lambda text: _BOOLEANS[text.lower()],
}


@dataclass(frozen=True)
class Parameter:
    """One declared parameter of a query."""

    name: str
    type: str
    description: str
    required: bool
    default: Any = None


@dataclass(frozen=True)
class Query:
    """One query of the library."""

    name: str
    topic: str
    """What it is about, `other` if the header does not say."""
    summary: str
    parameters: tuple[Parameter, ...]
    returns: tuple[str, ...]
    example: str
    sql: str
    text: str
    """The whole file, header included."""
    draws: tuple[str, ...] | None = None
    """The columns that a picture shows; none: rows to be read; None: the header does not say."""
    needs: str | None = None
    """What has to be recorded for an answer."""


def list_queries(folder: Path | None = None) -> list[Query]:
    """Return the queries of a folder, by default the shipped ones, sorted by name.

    Raises:
        QueryError: a header is malformed; file and line are named.
    """
    paths = sorted((folder or resources.folder("queries")).glob("*.sql"))
    return [parse(path) for path in paths]


def listing() -> list[dict[str, str]]:
    """Return a row per shipped query, by topic: its name, parameters and what it answers.

    Parameters in brackets can be left out.
    """
    return [
        {
            "topic": query.topic,
            "query": query.name,
            "parameters": " ".join(
                item.name if item.required else f"[{item.name}]" for item in query.parameters
            ),
            "answers": query.summary,
        }
        for query in sorted(list_queries(), key=lambda query: (query.topic, query.name))
    ]


def describe(query: Query) -> str:
    """Return what somebody who calls a query wants to know: parameters, columns, an example."""
    lines = [query.summary, "", "Parameters, each as -p KEY=VALUE:"]
    width = max((len(item.name) for item in query.parameters), default=0)
    for item in query.parameters:
        default = "NULL" if item.default is None else item.default
        ending = "required" if item.required else f"default: {default}"
        lines.append(f"  {item.name:<{width}}  {item.type:<5}  {item.description}  [{ending}]")
    lines += ["", f"Returns: {', '.join(query.returns)}"]
    if query.needs:
        lines += ["", f"Needs {query.needs}"]
    lines += ["", f"Example:  {query.example}"]
    return "\n".join(lines)


def get_query(name: str, folder: Path | None = None) -> Query:
    """Return one query.

    Raises:
        QueryError: there is none of that name; the message names the nearest.
    """
    found = {query.name: query for query in list_queries(folder)}
    if name not in found:
        hint = did_you_mean(name, found)
        raise QueryError(f"no query {name!r}.{hint} List them: pico query list")
    return found[name]


def run(
    connection: duckdb.DuckDBPyConnection, query: Query, parameters: Mapping[str, str]
) -> duckdb.DuckDBPyRelation:
    """Return the relation of a query with its parameters given as text.

    Raises:
        QueryError: naming every parameter that is unknown, missing or not of its type, or if the
            SQL does not run.
    """
    return statements.query(connection, query.sql, convert(query, parameters))


def convert(query: Query, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the typed value of every parameter of a query.

    Raises:
        QueryError: naming every parameter that is unknown, missing or not of its type.
    """
    known = {parameter.name: parameter for parameter in query.parameters}
    problems = [
        f"it has no parameter {name!r}.{did_you_mean(name, known)}"
        for name in given
        if name not in known
    ]
    values = {}
    for name, parameter in known.items():
        if name not in given:
            values[name] = parameter.default
            if parameter.required:
                problems.append(f"it needs {name} ({parameter.description}): -p {name}=…")
            continue
        try:
            values[name] = _CONVERT[parameter.type](given[name])
        except (ValueError, KeyError):
            problems.append(f"{name} takes {parameter.type}, not {given[name]!r}")
    if problems:
        raise QueryError(f"query {query.name}: {'; '.join(problems)}")
    return values


def parse(path: Path) -> Query:
    """Read one query file.

    Raises:
        QueryError: the header lacks something, says it twice, or does not fit the SQL; the message
            names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QueryError(f"cannot read {path.name}: {one_line(error)}") from None
    fields: dict[str, str] = {}
    parameters: dict[str, Parameter] = {}
    lines = text.splitlines()
    end = next((n for n, line in enumerate(lines) if not line.startswith("--")), len(lines))
    for number, line in enumerate(lines[:end], 1):
        match = _HEADER.fullmatch(line)
        key, value = (match["key"], match["value"]) if match else ("", "")
        where = f"{path.name}, line {number}"
        if key == "parameter":
            parameter = _parameter(value, where)
            if parameter.name in parameters:
                raise QueryError(f"{where}: parameter {parameter.name!r} is declared twice")
            parameters[parameter.name] = parameter
        elif key not in _KEYS or key in fields or not value:
            raise QueryError(
                f"{where}: {line!r} is no header line; they are '-- KEY: …' with "
                f"{', '.join(_KEYS)}, parameter, each but parameter once"
            )
        else:
            fields[key] = value
    missing = [key for key in _KEYS if key not in fields and key not in _OPTIONAL]
    if missing:
        raise QueryError(f"{path.name}, line {end + 1}: the header lacks '-- {missing[0]}: …'")
    if fields["name"] != path.stem:
        raise QueryError(f"{path.name}, line 1: the query is named {fields['name']!r}")
    body = "\n".join(lines[end:])
    _check_placeholders(body, parameters, path, end + 1)
    returns = _listed(fields["returns"])
    draws = _listed(fields["draws"]) if "draws" in fields else None
    for column in draws or ():
        if column not in (*returns, "nothing"):
            raise QueryError(f"{path.name}: it draws {column!r}, which it does not return")
    return Query(
        fields["name"],
        fields.get("topic", "other"),
        fields["summary"],
        tuple(parameters.values()),
        returns,
        fields["example"],
        body.strip(),
        text,
        () if draws == ("nothing",) else draws,
        fields.get("needs"),
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


def _parameter(value: str, where: str) -> Parameter:
    """Parse `NAME TYPE "description" [default VALUE]`."""
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise QueryError(f"{where}: {error}") from None
    with_default = len(words) == 5 and words[3] == "default"
    if len(words) != 3 and not with_default:
        raise QueryError(f'{where}: a parameter is: NAME TYPE "description" [default VALUE]')
    name, kind, description = words[:3]
    if not _NAME.fullmatch(name):
        raise QueryError(f"{where}: {name!r} cannot name a parameter")
    if kind not in _CONVERT:
        raise QueryError(f"{where}: no type {kind!r}; types: {', '.join(_CONVERT)}")
    if not with_default or words[4] == "NULL":
        return Parameter(name, kind, description, required=not with_default)
    try:
        return Parameter(name, kind, description, False, _CONVERT[kind](words[4]))
    except (ValueError, KeyError):
        raise QueryError(f"{where}: default {words[4]!r} is no {kind}") from None


def _check_placeholders(
    sql: str, parameters: Mapping[str, Parameter], path: Path, first_line: int
) -> None:
    """Refuse SQL that uses other parameters than the header declares."""
    used: dict[str, int] = {}
    for match in _PLACEHOLDER.finditer(sql):
        if match[1]:
            used.setdefault(match[1], first_line + sql.count("\n", 0, match.start()))
    for name, line in used.items():
        if name not in parameters:
            raise QueryError(f"{path.name}, line {line}: ${name} is not declared in the header")
    for name in parameters:
        if name not in used:
            raise QueryError(f"{path.name}, line 1: parameter {name!r} is not used in the SQL")
