"""The tables and functions of a schema: made, and brought up to date, by whoever opens it first.

State model. ``{schema}.migration`` lists what was applied. Whoever finds something lacking takes an advisory lock that the
schema's name gives, and applies all of it in the same transaction: others wait and then find nothing to do, and who is
killed leaves nothing behind.
"""

import asyncio
import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import asyncpg

from alkstore import migrations, statements
from alkstore.migrations import Migration
from alkstore_pg.errors import DRIVER, is_repeatable, translate
from alkstore_pg.link import Connection, DriverSession, end
from alkstore_pg.pool import Pool
from alkstore_pg.session import Schema, Session, milliseconds

__all__ = ["MIGRATIONS", "TABLES", "Found", "grants", "look", "migrate", "pending", "script", "standing"]

MIGRATIONS: Final = migrations.load("alkstore_pg")

TABLES: Final = sorted(
    name
    for migration in MIGRATIONS
    for statement in migration.statements
    for name in re.findall(r"CREATE TABLE \{schema\}\.(\w+)", statement)
)
"""What the schema has, beside the list of its migrations."""

TABLE_PATIENCE: Final = 2.0
"""Seconds that a migration waits for a table: everybody else who wants it stands in line behind the one who waits."""

PAUSE: Final = 0.2
"""Seconds, on average, between two attempts, in which those who stood in line get through."""

_SQL: Final = statements.load("alkstore_pg", "schema")


class Found(NamedTuple):
    """What a look found; ``lacking``: the tables in which the role may not do all that this engine does."""

    version: int
    version_text: str
    encoding: str
    isolation: str
    is_standby: bool
    is_read_only: bool
    role: str
    has_schema: bool
    has_usage: bool
    has_list: bool
    lacking: Sequence[str]
    now: int


async def look(on: Session, schema: Schema) -> Found:
    """See what server, role and schema are like; the schema may be missing. Cost: one round trip."""
    (row,) = await on.fetch(_SQL["surroundings"], schema.name, TABLES)
    return Found(*row)


async def pending(on: Session, found: Found, known: Sequence[Migration] = MIGRATIONS) -> Sequence[Migration]:
    """Say what the schema still lacks.

    Raises:
        SchemaMismatch: A newer version wrote it.
        DatabaseError: It has other tables than this version makes.

    Cost: one round trip, none if there is no schema yet.
    """
    rows = await on.fetch(_SQL["applied"]) if found.has_list else ()
    return migrations.plan(known, {row[0]: row[1] for row in rows})


async def standing(on: Session, found: Found) -> tuple[Sequence[Migration], bool]:
    """Say what the schema still lacks, as `pending` does, and whether there is a stream in it; for who may use its tables."""
    rows = await on.fetch(_SQL["standing"]) if found.has_list else ()
    return migrations.plan(MIGRATIONS, {row[0]: row[1] for row in rows}), bool(rows and rows[0][2])


# ---------------------------------------------------------------- applying


async def migrate(
    pool: Pool,
    schema: Schema,
    *,
    wait_timeout: float,
    random: random.Random,
    known: Sequence[Migration] = MIGRATIONS,
) -> Sequence[Migration]:
    """Bring a schema up to date in one transaction, and give what that took; harmless if somebody else has just done it.

    Raises:
        SchemaMismatch: A newer version wrote it.
        DatabaseError: Others held what it needs for all of ``wait_timeout`` seconds, or it failed: nothing is changed.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_timeout
    while True:
        try:
            return await _attempt(pool, schema, known, until - loop.time())
        except DRIVER as error:
            pause = PAUSE * (0.5 + random.random())
            may_wait = isinstance(error, asyncpg.LockNotAvailableError) or is_repeatable(error)
            if not may_wait or loop.time() + pause >= until:
                raise translate(error, writes=False) from error
        await asyncio.sleep(pause)


async def _attempt(
    pool: Pool, schema: Schema, known: Sequence[Migration], seconds_left: float
) -> Sequence[Migration]:
    on = await pool.lend()
    connection = on.connection
    try:
        transaction = connection.transaction(isolation="read_committed")
        await transaction.start()
        await on.fetch(_SQL["own_names"])
        await on.fetch(_SQL["patience"], milliseconds(seconds_left))
        await on.fetch(_SQL["turn"], _key(schema))
        # Somebody else may have done it while we waited.
        found = await look(on, schema)
        lacking = await pending(on, found, known)
        if lacking:
            await on.fetch(_SQL["patience"], milliseconds(min(seconds_left, TABLE_PATIENCE)))
            await _apply(connection, schema, found, lacking)
        await transaction.commit()
        return lacking
    except BaseException:
        # The server undoes the transaction, whatever state it is in, and no second error hides the first. Nor does it go on with
        # a statement that locks tables, for nobody.
        await end(connection)
        raise
    finally:
        pool.take_back(on)


async def _apply(connection: Connection, schema: Schema, found: Found, lacking: Sequence[Migration]) -> None:
    for statement in _framed(found, lacking):
        await connection.execute(schema.render(statement))
    on = DriverSession(connection, schema)
    for migration in lacking:
        await on.fetch(_SQL["note"], migration.version, migration.name, migration.checksum)


def _framed(found: Found, lacking: Sequence[Migration]) -> Iterator[str]:
    if not found.has_schema:
        yield _SQL["make_schema"]
    if not found.has_list:
        yield _SQL["make_list"]
    for migration in lacking:
        yield from migration.statements


def _key(schema: Schema) -> int:
    digest = hashlib.sha256(f"alkstore migrates {schema.name}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)


# ---------------------------------------------------------------- for people with other rights


def script(schema: Schema, found: Found, lacking: Sequence[Migration]) -> str:
    """Write what `migrate` would do as a script for psql; empty if there is nothing to do."""
    if not lacking:
        return ""
    steps = [
        "BEGIN",
        _SQL["own_names"],
        _filled(_SQL["turn"], _key(schema)),
        *map(schema.render, _framed(found, lacking)),
        *(schema.render(_filled(_SQL["note"], step.version, step.name, step.checksum)) for step in lacking),
        "COMMIT",
    ]
    return "".join(f"{step};\n\n" for step in steps)


def _filled(statement: str, *values: int | str) -> str:
    """Put numbers, and texts that need no escape (a migration's name and checksum), where the parameters stand."""
    for number, value in enumerate(values, 1):
        statement = statement.replace(f"${number}", f"'{value}'")
    return statement


def grants(schema: Schema, role: str) -> str:
    """Write what makes a role one that opens stores and uses them, and changes no table; for psql, by the schema's owner.

    What later migrations add is the role's too, if the one who runs them is the one who ran this.
    """
    identifier = '"{}"'.format(role.replace('"', '""'))
    granted = ""
    for title in _GRANTS:
        # By parts, for either name may hold what looks like the other's place.
        granted += identifier.join(map(schema.render, _SQL[title].split("{role}"))) + ";\n"
    return granted


_GRANTS: Final = (
    "grant_schema", "grant_tables", "grant_sequences", "grant_functions", "later_tables", "later_sequences",
    "later_functions", "guard_list",
)  # fmt: skip
