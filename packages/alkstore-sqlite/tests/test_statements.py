"""Every statement of sql/ is used, is SQL for the tables that there are, and finds its rows by an index."""

import ast
import re
import sqlite3
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Final

import pytest
from tables import plan_of, with_tables

from alkstore import statements

AREAS: Final = ("queue", "stream", "wake", "lock", "schedule")
SQL: Final[Mapping[str, Mapping[str, str]]] = {
    area: statements.load("alkstore_sqlite", area) for area in AREAS
}
EACH: Final = [pytest.param(sql, id=f"{area}-{name}") for area in AREAS for name, sql in SQL[area].items()]

# As sqlite.org lists them, but for those that are names of ours.
KEYWORDS: Final = """
abort add after all alter analyze and as asc autoincrement before begin between by cascade case cast collate
commit conflict constraint create cross cte current deferrable deferred delete desc distinct do drop else end escape
except exists explain false filter following for foreign from full glob group having if ignore in index indexed
initially inner insert instead intersect into is isnull join last left like limit match materialized natural not
nothing notnull null of on or order outer over partition pragma primary recursive references replace restrict
returning right rollback rows savepoint select set table then to transaction true union unique update using vacuum
values view when where with without
"""

WORD: Final = re.compile(r"'[^']*'|[A-Za-z_]+\(?")
ACCESS: Final = re.compile(
    r"(?:SEARCH|SCAN) \w+ .*?(?:INDEX |USING )(\w+|INTEGER PRIMARY KEY|PRIMARY KEY)(?: \((.*)\))?$"
)


# ---------------------------------------------------------------- form


def _modules() -> Iterator[tuple[str, ast.Module]]:
    """Give every module that has statements: the area that it loads, and its syntax tree."""
    for file in (resources.files("alkstore_sqlite")).iterdir():
        if file.name.endswith(".py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "statements.load":
                    yield ast.literal_eval(node.args[1]), tree


def _asked_for(tree: ast.Module) -> Iterator[str]:
    """Give the names by which a module takes statements; of a function that takes them by a variable, all its strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "_SQL":
            if isinstance(node.slice, ast.Constant):
                yield ast.literal_eval(node.slice)
        elif isinstance(node, ast.FunctionDef) and re.search(r"_SQL\[(?!')", ast.unparse(node)):
            yield from (
                found.value
                for found in ast.walk(node)
                if isinstance(found, ast.Constant) and isinstance(found.value, str)
            )


def test_every_statement_is_used_and_every_one_used_is_there() -> None:
    used: dict[str, set[str]] = {area: set() for area in AREAS}
    for area, tree in _modules():
        used[area] |= {name for name in _asked_for(tree) if re.fullmatch(r"[a-z_]+", name)}

    assert used == {area: set(SQL[area]) for area in AREAS}


def test_every_file_of_statements_is_an_area() -> None:
    folder = resources.files("alkstore_sqlite") / "sql"

    assert sorted(file.name for file in folder.iterdir()) == sorted(f"{area}.sql" for area in AREAS)


@pytest.mark.parametrize("sql", EACH)
def test_a_statement_prepares_on_the_tables_that_there_are(connection: sqlite3.Connection, sql: str) -> None:
    assert sqlite3.complete_statement(f"{sql};")
    plan_of(connection, sql)


@pytest.mark.parametrize("sql", EACH)
def test_keywords_and_functions_are_written_in_capitals(sql: str) -> None:
    keywords = KEYWORDS.split()
    words = [word for word in WORD.findall(sql) if not word.startswith("'")]

    assert [word for word in words if word in keywords or (word.endswith("(") and word.islower())] == []


@pytest.mark.parametrize("sql", EACH)
def test_columns_are_listed_and_values_are_numbered(sql: str) -> None:
    assert not re.search(r"\*(?!\))", sql), "COUNT(*) alone counts"
    assert not re.search(r"\?(?![0-9])|[:@$][a-z]", sql)
    assert not re.search(r"\bVALUES\b", sql) or re.search(r"INSERT INTO \w+ \(", sql)


# ---------------------------------------------------------------- plans

LINE: Final = "alkstore_job_line"
HELD: Final = "alkstore_job_held"
EXPIRY: Final = "alkstore_job_expiry"
QUEUE: Final = "alkstore_job_queue"
DEAD: Final = "alkstore_job_dead"
ROW: Final = "INTEGER PRIMARY KEY"
KEY: Final = "PRIMARY KEY"
STREAM: Final = "sqlite_autoindex_alkstore_stream_1"
EVENT: Final = "sqlite_autoindex_alkstore_event_1"

BY_ID: Final = {(ROW, "rowid=?")}
BY_STREAM: Final = (STREAM, "name=?")

HOT: Final[Mapping[str, set[tuple[str, str]]]] = {
    "queue is_stirred": {
        (HELD, "queue=? AND place=? AND deadline<?"),
        (HELD, "queue=? AND place=? AND deadline>?"),
        (EXPIRY, "queue=? AND place=? AND expires_at<?"),
        (EXPIRY, "queue=? AND place=? AND expires_at>?"),
    },
    "queue first_in_line": {(LINE, "queue=?"), (LINE, "queue=? AND priority=? AND run_at<?")},
    "queue highest_level": {(LINE, "queue=?")},
    "queue next_level": {(LINE, "queue=? AND priority<?")},
    "queue first_of_level": {(LINE, "queue=? AND priority=? AND run_at<?")},
    "queue next_of_level": {(LINE, "queue=? AND priority=? AND run_at>?")},
    "queue next_lapse": {(HELD, "queue=? AND place=? AND deadline>?")},
    "queue bury_lapsed": {*BY_ID, (HELD, "queue=? AND place=? AND deadline<?")},
    "queue put_in_line": {*BY_ID, (HELD, "queue=? AND place=? AND deadline<?")},
    "queue set_aside": {*BY_ID, (EXPIRY, "queue=? AND place=? AND expires_at<?")},
    "queue take_up": {*BY_ID, (EXPIRY, "queue=? AND place=? AND expires_at>?")},
    "queue hold_again": {*BY_ID, (HELD, "queue=? AND place=? AND deadline>?")},
    **dict.fromkeys(
        [f"queue {name}" for name in ("hold", "ack", "retry", "fail", "release", "heartbeat", "cancel")],
        BY_ID,
    ),
    "queue redrive": BY_ID,
    "queue find_by_id": BY_ID,
    "queue find": {(QUEUE, "queue=? AND rowid>?")},
    "queue find_pending": {(QUEUE, "queue=? AND rowid>?")},
    "queue find_dead": {(DEAD, "queue=? AND rowid>?")},
    "queue bury_expired": {(EXPIRY, "queue=? AND place=? AND expires_at<?")},
    "queue purge": {(DEAD, "queue=?")},
    "stream grow": {BY_STREAM},
    "stream find": {BY_STREAM},
    "stream head": {BY_STREAM},
    "stream read": {BY_STREAM, (EVENT, "stream=? AND offset>?")},
    "stream trim": {BY_STREAM, (EVENT, "stream=? AND offset<?")},
    "stream offsets": {BY_STREAM, (KEY, "stream=?")},
    "stream position": {BY_STREAM, (KEY, "stream=? AND consumer=?")},
    "stream hold": BY_ID,
    "stream save": {BY_STREAM},
    "wake count": {(KEY, "name=?")},
    "wake wakes": {(KEY, "name=?")},
    "wake probe_channels": {(KEY, "name=?")},
    "wake probe_streams": {BY_STREAM},
    "wake probe_locks": {(KEY, "name=?")},
    "lock find": {(KEY, "name=?")},
    "lock renew": {(KEY, "name=?")},
    "lock is_live": {(KEY, "name=?")},
    "schedule due": {("alkstore_schedule_due", "next_fire_at<?")},
    "schedule next_at": {("alkstore_schedule_due", "next_fire_at>?")},
}
"""By what each statement that is run often finds its rows: the index, and as much of its key as is used."""

PROBE: Final = {
    (LINE, "queue=?"),
    (LINE, "queue=? AND priority<?"),
    (LINE, "queue=? AND priority=?"),
    (HELD, "queue=? AND place=? AND deadline>?"),
}

ROWS: Final = 3_000
NUMBERS: Final = f"WITH RECURSIVE i (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < {ROWS})"


def _fill(connection: sqlite3.Connection, queues: int) -> None:
    """Put rows in, and let SQLite count what it then plans by: an application may say ANALYZE at any time."""
    for sql in (
        "INSERT INTO alkstore_job (queue, payload, headers, place, priority, run_at, expires_at, attempts, max_attempts, "
        f"visibility_timeout, base_delay, deadline, created_at) {NUMBERS} SELECT 'q' || (n % {queues}), x'', x'', n % 5, "
        "n % 3, n, IIF(n % 2, n, NULL), 0, 1, 1, 1, IIF(n % 5 IN (1, 2), n, NULL), 0 FROM i",
        f"INSERT INTO alkstore_stream (name, head) {NUMBERS} SELECT 's' || n, 1 FROM i",
        "INSERT INTO alkstore_event (stream, offset, payload, headers, created_at) "
        f"{NUMBERS} SELECT 1 + n % 3, n, x'', x'', 0 FROM i",
        f"INSERT INTO alkstore_position (stream, consumer, offset) {NUMBERS} SELECT 1 + n % 3, n, 1 FROM i",
        f"INSERT INTO alkstore_lock (name, fence) {NUMBERS} SELECT 'l' || n, 1 FROM i",
        f"INSERT INTO alkstore_channel (name, wakes) {NUMBERS} SELECT 'c' || n, 1 FROM i",
        "ANALYZE",
    ):
        connection.execute(sql)


@pytest.fixture(scope="module", params=[0, 1, 500], ids=["empty", "one queue", "many queues"])
def analysed(request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    connection = with_tables()
    if request.param:
        _fill(connection, request.param)
    yield connection
    connection.close()


def _accesses(lines: list[str]) -> set[tuple[str, str]]:
    """Give what tables of ours are sought by."""
    ours = [
        line for line in lines if re.match(r"(SEARCH|SCAN) (?!level|topic|name$|JSON_EACH|CONSTANT|\()", line)
    ]
    found = [(line, ACCESS.search(line.removesuffix(" LEFT-JOIN"))) for line in ours]
    return {(match[1], match[2] or "") if match else (line, "") for line, match in found}


@pytest.mark.parametrize("name", HOT)
def test_what_is_run_often_finds_its_rows_by_its_index(analysed: sqlite3.Connection, name: str) -> None:
    area, _, statement = name.partition(" ")

    lines = plan_of(analysed, SQL[area][statement])

    assert _accesses(lines) == HOT[name]
    assert [line for line in lines if "TEMP B-TREE" in line] == []


def test_the_queues_that_are_waited_for_are_sought_level_by_level(analysed: sqlite3.Connection) -> None:
    lines = plan_of(analysed, SQL["wake"]["probe_queues"])

    assert _accesses(lines) == PROBE
    assert [line for line in lines if "ORDER BY" in line] == []


def test_the_jobs_in_work_are_sought_by_what_is_held_and_sorted(analysed: sqlite3.Connection) -> None:
    lines = plan_of(analysed, SQL["queue"]["find_processing"])

    assert _accesses(lines) == {(HELD, "queue=?")}


def test_the_names_of_queues_are_hopped_to(analysed: sqlite3.Connection) -> None:
    lines = plan_of(analysed, SQL["queue"]["names"])

    assert _accesses(lines) == {(QUEUE, ""), (QUEUE, "queue>?")}
    assert [line for line in lines if line.startswith("SCAN alkstore")] == []
