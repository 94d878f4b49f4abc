import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from alkstore.statements import load, split

PACKAGE = "engine_of_this_test"

Write = Callable[[str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes sql/queue.sql of a package that can be imported."""
    (tmp_path / PACKAGE / "sql").mkdir(parents=True)
    (tmp_path / PACKAGE / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    def write_queue(text: str) -> None:
        (tmp_path / PACKAGE / "sql" / "queue.sql").write_bytes(text.encode())

    yield write_queue
    sys.modules.pop(PACKAGE, None)  # the next test has its own


def test_statements_are_found_by_name_in_their_order_without_comments(write: Write) -> None:
    write(
        "-- What a queue needs.\n"
        "\n"
        "-- name: claim\n"
        "-- Takes a job: a name may stand in its purpose.\n"
        "-- The second line of it.\n"
        "UPDATE job -- the row\n"
        "-- who has it\n"
        "SET worker = ?1 /* him */ WHERE note = '; -- no comment';\n"
        "\n"
        "-- What follows is about the next one.\n"
        "-- name: next_at\n"
        "-- When to look again.\n"
        "SELECT 1;\n"
    )

    found = load(PACKAGE, "queue")

    assert dict(found) == {
        "claim": "UPDATE job\nSET worker = ?1   WHERE note = '; -- no comment'",
        "next_at": "SELECT 1",
    }
    assert list(found) == ["claim", "next_at"]


def test_a_checkout_with_other_newlines_gives_the_same_statements(write: Write) -> None:
    write("-- name: claim\r\n-- Takes a job.\r\nSELECT\r\n1;\r\n")

    assert dict(load(PACKAGE, "queue")) == {"claim": "SELECT\n1"}


def test_an_unknown_name_lists_those_that_there_are(write: Write) -> None:
    write("-- name: claim\n-- Takes.\nSELECT 1;\n-- name: ack\n-- Ends.\nSELECT 2;\n")
    found = load(PACKAGE, "queue")

    with pytest.raises(KeyError) as raised:
        found["clam"]

    (text,) = raised.value.args
    assert text == f"no statement 'clam' in {PACKAGE}/sql/queue.sql, there are: claim, ack"
    assert "clam" not in found
    assert found.get("clam") is None


def test_loaded_statements_cannot_be_changed(write: Write) -> None:
    write("-- name: claim\n-- Takes.\nSELECT 1;\n")
    found = load(PACKAGE, "queue")

    with pytest.raises(TypeError):
        found["claim"] = "SELECT 2"  # type: ignore[index]  # that is what must fail


def test_an_unknown_area_lists_those_that_there_are(write: Write) -> None:
    write("")

    with pytest.raises(
        ValueError, match=r"no area 'queues': .*/sql/queues.sql is missing, there are: queue$"
    ):
        load(PACKAGE, "queues")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-- head\nSELECT 1;\n-- name: a\n-- It.\nSELECT 1;", "a statement has no name"),
        ("SELECT 1", "a statement has no name"),
        ("-- name: Claim\n-- It.\nSELECT 1;", "must be of a-z and _, got 'Claim'"),
        ("-- name:\n-- It.\nSELECT 1;", "must be of a-z and _, got ''"),
        ("-- name: a\n-- It.\nSELECT 1;\n-- name: a\n-- It.\nSELECT 2;", "a is there twice"),
        ("-- name: a\nSELECT 1;", "a has no purpose"),
        ("-- name: a\n--\nSELECT 1;", "a has no purpose"),
        ("-- name: a\n\n-- Too far away.\nSELECT 1;", "a has no purpose"),
        ("-- name: a\n-- It.\n", "a must be one statement, got 0"),
        ("-- name: a\n-- It.\n;\n-- name: b\n-- It.\nSELECT 1;", "a must be one statement, got 0"),
        ("-- name: a\n-- It.\nSELECT 1;\nSELECT 2;", "a must be one statement, got 2"),
        ("-- name: a\n-- It.\nSELECT 1", "a: the last statement is not ended by ';', it begins 'SELECT 1'"),
        ("-- name: a\n-- It.\nSELECT 'x;", r"a: ' is not closed \(line 3 of its text\)"),
    ],
)
def test_a_file_that_keeps_no_order_is_refused_with_the_place(write: Write, text: str, problem: str) -> None:
    write(text)

    with pytest.raises(ValueError, match=f"^{PACKAGE}/sql/queue.sql: .*{problem}"):
        load(PACKAGE, "queue")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT ';', 'it''s; so', \"a;b\"",
        r"SELECT E'it\'s;', '\'",
        "SELECT $1, a$b$c",
        "CREATE TRIGGER t AFTER INSERT ON job BEGIN\n  SELECT CASE WHEN 1 THEN 2 END;\n  SELECT 3;\nEND",
        "create temp trigger t after insert on job begin select 1; end",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; SELECT 2; END",
        "CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN '1'; END; $$",
        "DO $body$ BEGIN PERFORM $$;$$; END; -- kept: it is the body's $body$",
        "CREATE TABLE job (begin INTEGER)",
        "SELECT CASE WHEN 1 THEN 2 END",
    ],
)
def test_a_semicolon_that_closes_nothing_parts_nothing(statement: str) -> None:
    assert split(f"-- first;\nSELECT 1;{statement}; -- last;\n;", "here") == ("SELECT 1", statement)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("SELECT 1;\n/* SELECT 2;", "here: /\\* is not closed"),
        ('SELECT "a;', 'here: " is not closed'),
        ("DO $b$ SELECT 1; $c$;", "here: \\$b\\$ is not closed"),
        ("CREATE TRIGGER t AFTER INSERT ON job BEGIN SELECT 1;", "here: the last statement is not ended"),
    ],
)
def test_what_is_left_open_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        split(text, "here")
