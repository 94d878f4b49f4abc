"""What rows may not contain, and how a wrong declaration is refused."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alkstore_contract_suite import rows
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import RowError, row

FILES = sorted(Path(rows.__file__).parent.glob("*.py"))

BANNED_WORDS = re.compile(
    r"\b(sqlite\w*|postgres\w*|pg|asyncpg|aiosqlite|psycopg|alkstore_\w+|\w*(MemStore|PgStore|SqliteStore))\b",
    re.I,
)
"""Names of engines and drivers; the suite's own package apart."""

SQL = re.compile(r"\b(SELECT|INSERT INTO|DELETE FROM|UPDATE|CREATE TABLE)\b")

BANNED_CALLS = {"sleep", "skip", "importorskip", "xfail"}


async def honest(ctx: Context) -> None:
    """A row's function for declarations that are refused."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows_name_no_engine_and_no_driver(path: Path) -> None:
    found = [
        text
        for text in _code(path)
        if any(
            not word.startswith("alkstore_contract_suite")
            for word in map(_first, BANNED_WORDS.finditer(text))
        )
    ]

    assert found == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows_hold_no_statement_of_sql(path: Path) -> None:
    assert [text for text in _code(path) if SQL.search(text)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows_neither_sleep_nor_skip(path: Path) -> None:
    called = [
        f"{path.name}:{node.lineno} {name}"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and (name := _called(node)) in BANNED_CALLS
    ]

    assert called == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows_do_not_look_at_the_text_of_errors(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    looked = [
        f"{path.name}:{node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and _called(node) in {"str", "repr"}
        and any(isinstance(each, ast.Attribute) and each.attr == "error" for each in node.args)
    ]

    assert looked == []


@pytest.mark.parametrize(
    ("id", "changed"),
    [
        ("Q-99", {}),
        ("nonsense", {}),
        ("Q-01", {"depends": ("Q-98",)}),
        ("Q-01", {"modes": ()}),
        ("Q-01", {"modes": ("sideways",)}),
        ("Q-01", {"modes": ("plain", "plain")}),
        ("Q-01", {"needs": ("magic",)}),
        ("Q-01", {"level": "PERHAPS"}),
        ("Q-01", {"oracle": " "}),
        ("FACTORY-01", {"lacks": ("magic",)}),
        ("Q-01", {"lacks": ("sql",)}),
    ],
)
def test_a_wrong_declaration_is_refused_at_import(id: str, changed: dict[str, Any]) -> None:
    given: dict[str, Any] = {"text": "a promise", "oracle": "a look", **changed}

    with pytest.raises(RowError):
        row(id, **given)(honest)


def test_one_name_is_not_declared_twice_for_one_row() -> None:
    taken = rows.registered()[0]

    with pytest.raises(RowError, match="declared twice"):
        row(taken.id, text="a promise", oracle="a look")(taken.function)


def test_a_plain_function_is_no_row() -> None:
    def plain(ctx: Context) -> None: ...

    with pytest.raises(RowError, match="async"):
        row("Q-01", text="a promise", oracle="a look")(plain)  # type: ignore[arg-type]  # what is refused here


def test_modes_imply_what_they_need() -> None:
    declared = rows.registered()[0]

    assert [declared.needs_in(mode)[len(declared.needs) :] for mode in ("plain", "second", "crash-kill")] == [
        (),
        ("multi_process",),
        ("durable",),
    ]


def _code(path: Path) -> Iterator[str]:
    """Give every name and every string of a file, docstrings apart: prose may say what code may not."""
    tree = ast.parse(path.read_text("utf-8"))
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def _first(match: re.Match[str]) -> str:
    return match.group()


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
