import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from alkstore.errors import DatabaseError, SchemaMismatch
from alkstore.migrations import Migration, load, plan

PACKAGE = "engine_with_a_schema"

Write = Callable[[Mapping[str, str]], None]

KNOWN = (
    Migration(1, "initial", "a", ("SELECT 1",)),
    Migration(2, "marks", "b", ("SELECT 2",)),
    Migration(3, "counts", "c", ("SELECT 3",)),
)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes migrations/ of a package that can be imported."""
    (tmp_path / PACKAGE / "migrations").mkdir(parents=True)
    (tmp_path / PACKAGE / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    def write_files(files: Mapping[str, str]) -> None:
        for name, text in files.items():
            (tmp_path / PACKAGE / "migrations" / name).write_bytes(text.encode())

    yield write_files
    sys.modules.pop(PACKAGE, None)  # the next test has its own


def test_migrations_are_read_in_the_order_of_their_numbers(write: Write) -> None:
    first, second = "-- All.\nCREATE TABLE a (b);\nCREATE TABLE c (d);\n", "ALTER TABLE a ADD COLUMN e;\n"
    write({"0002_more.sql": second, "0001_initial.sql": first, "README.md": "No migration."})

    found = load(PACKAGE)

    assert found == (
        Migration(
            1,
            "initial",
            hashlib.sha256(first.encode()).hexdigest(),
            ("CREATE TABLE a (b)", "CREATE TABLE c (d)"),
        ),
        Migration(2, "more", hashlib.sha256(second.encode()).hexdigest(), ("ALTER TABLE a ADD COLUMN e",)),
    )


def test_a_checkout_with_other_newlines_gives_the_same_checksum(write: Write) -> None:
    write({"0001_initial.sql": "CREATE TABLE a (b);\nSELECT 1;\n"})
    expected = load(PACKAGE)

    write({"0001_initial.sql": "CREATE TABLE a (b);\r\nSELECT 1;\r\n"})

    assert load(PACKAGE) == expected


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, r"must be numbered from 0001 without a gap, got \[\]"),
        ({"0002_a.sql": "SELECT 1;"}, r"without a gap, got \[2\]"),
        ({"0001_a.sql": "SELECT 1;", "0003_b.sql": "SELECT 1;"}, r"without a gap, got \[1, 3\]"),
        ({"0001_a.sql": "SELECT 1;", "0001_b.sql": "SELECT 1;"}, r"without a gap, got \[1, 1\]"),
        ({"1_a.sql": "SELECT 1;"}, "must be named NNNN_name.sql, got '1_a.sql'"),
        ({"0001_a.sql": "-- Nothing.\n"}, "/0001_a.sql: there is no statement"),
        ({"0001_a.sql": "SELECT 1"}, "/0001_a.sql: the last statement is not ended by ';'"),
    ],
)
def test_a_folder_that_keeps_no_order_is_refused(
    write: Write, files: Mapping[str, str], problem: str
) -> None:
    write(files)

    with pytest.raises(ValueError, match=f"^{PACKAGE}/migrations.*{problem}"):
        load(PACKAGE)


@pytest.mark.parametrize(
    ("applied", "expected"),
    [
        ({}, KNOWN),
        ({1: "a"}, KNOWN[1:]),
        ({2: "b", 1: "a"}, KNOWN[2:]),
        ({1: "a", 2: "b", 3: "c"}, ()),
    ],
)
def test_a_plan_is_what_the_storage_lacks(
    applied: Mapping[int, str], expected: tuple[Migration, ...]
) -> None:
    assert plan(KNOWN, applied) == expected


def test_a_newer_storage_is_refused_whatever_else_is_wrong_with_it() -> None:
    with pytest.raises(SchemaMismatch) as raised:
        plan(KNOWN, {1: "x", 5: "y"})

    assert (raised.value.found, raised.value.known) == (5, 3)


def test_a_storage_that_skipped_a_version_is_refused() -> None:
    with pytest.raises(DatabaseError, match=r"has schema version 3 but never had \[2\]"):
        plan(KNOWN, {1: "a", 3: "c"})


def test_a_version_made_by_another_text_is_refused() -> None:
    with pytest.raises(DatabaseError, match="schema version 2 was made by another text than 'marks'"):
        plan(KNOWN, {1: "a", 2: "changed"})
