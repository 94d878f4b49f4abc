"""The suite's own connection to a database: what it makes there, sets, looks at and empties, past alkstore.

It is synchronous: it belongs to no event loop, so one serves all the cases of a run, and what it sends takes less than a
millisecond. Everything of the suite's own is in a schema of its own; the application's tables are in ``public``.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg import RawCursor

__all__ = ["APPLICATION", "Outsider", "quoted"]

APPLICATION: Final = "alkstore suite"
"""What the server calls this connection."""

LOCK_PATIENCE: Final = 2_000
"""Milliseconds of waiting for a lock, after which what a case left behind is told and not waited for."""

OURS: Final = """
CREATE SCHEMA suite;
CREATE SEQUENCE suite.clock MINVALUE -9223372036854775808;
CREATE TABLE public.business (key text PRIMARY KEY, value text NOT NULL);
"""

# Not transactional, so that time moves for a transaction whose snapshot is old, as the server's own does.
NOW: Final = """
CREATE OR REPLACE FUNCTION {schema}.now() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT last_value FROM suite.clock $$
"""

TAMED: Final = """
SELECT prosrc LIKE '%suite.clock%' FROM pg_catalog.pg_proc
WHERE proname = 'now' AND pronamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1)
"""

REFUSE: Final = """
CREATE FUNCTION suite.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the application refuses this commit' USING ERRCODE = 'check_violation';
END $$
"""

# The one place on a machine where there is never any room.
FILL: Final = """
CREATE FUNCTION suite.fill() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    COPY (SELECT 1) TO '/dev/full';
    RETURN NULL;
END $$
"""

# What is named like a table of ours, and is none: who names one without its schema would meet these first.
HOSTILE: Final = """
CREATE SCHEMA hostile;
CREATE TABLE hostile.job (); CREATE TABLE hostile.dead (); CREATE TABLE hostile.stream (); CREATE TABLE hostile.event ();
CREATE TABLE hostile.position (); CREATE TABLE hostile.lock (); CREATE TABLE hostile.schedule ();
CREATE TABLE hostile.migration ()
"""

TABLES: Final = """
SELECT c.relname FROM pg_catalog.pg_class AS c
WHERE c.relkind = 'r' AND c.relname <> 'migration'
    AND c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1)
ORDER BY c.relname
"""

STRANGERS: Final = """
SELECT nspname FROM pg_catalog.pg_namespace
WHERE nspname !~ '^pg_' AND nspname <> ALL (ARRAY['information_schema', 'public', 'suite', 'hostile', $1])
"""

# A deleted row stays in the way until it is vacuumed, and a truncation costs as much as the deletion of hundreds.
EMPTY_ONE: Final = """
    DELETE FROM {table};
    IF pg_catalog.pg_relation_size('{table}') > 1048576 THEN TRUNCATE {table}; END IF;
"""

# What the view pg_stat_activity is made of: to plan its joins takes three times as long as all of this.
SESSIONS: Final = """
FROM pg_catalog.pg_stat_get_activity(NULL)
WHERE datid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
    AND pid <> pg_catalog.pg_backend_pid() AND backend_type = 'client backend'
"""

# One that waits for its client in the middle of a statement waits for a task that stands still.
PROGRESS: Final = f"""
SELECT coalesce(bool_or(wait_event_type = 'Lock'), false),
    coalesce(bool_or(state = 'active' AND coalesce(wait_event_type, '') NOT IN ('Lock', 'Client')), false)
{SESSIONS}
"""

WORKING: Final = f"SELECT pid {SESSIONS} AND state <> 'idle' ORDER BY pid"


def quoted(name: str) -> str:
    """Write a name as an identifier."""
    return '"{}"'.format(name.replace('"', '""'))


class Outsider:
    """A superuser's connection to one database, made when it is wanted, and made anew when it was lost.

    Attributes:
        is_away: Whether a fault keeps everybody from the database.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.is_away = False
        self._instant = 0
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection; the next statement makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def run(self, sql: str, *parameters: object, often: bool = False) -> list[tuple[Any, ...]]:
        """Run a statement that may be sent twice, and give its rows; one that is sent ``often`` is planned once."""
        try:
            return self._send(sql, parameters, often)
        except psycopg.OperationalError:
            if self._connection is not None and not self._connection.closed:
                raise
            # A server that was restarted cut us off as well.
            return self._send(sql, parameters, often)

    def _send(self, sql: str, parameters: Sequence[object], often: bool) -> list[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self.dsn, lock_timeout=LOCK_PATIENCE)
            self._connection.prepare_threshold = 0  # or none is prepared, not even those that ask for it
        cursor = RawCursor(self._connection)
        try:
            cursor.execute(sql, parameters or None, prepare=often)
        except psycopg.Error:
            raise
        except BaseException:
            # In the midst of an answer, the time limit of a test: no other statement could follow.
            self.close()
            raise
        return cursor.fetchall() if cursor.description is not None else []

    # ---------------------------------------------------------------- what is made once

    def furnish(self) -> None:
        """Make what the suite and the application have in a database, beside alkstore."""
        self.run(OURS + REFUSE + ";" + FILL)
        with suppress(psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile):
            self.run("CREATE EXTENSION amcheck SCHEMA suite")

    def search(self, path: str) -> None:
        """Let every session begin with this search path, as an administrator's setting does."""
        if "hostile" in path:
            self.run(HOSTILE)
        (name,) = self.run("SELECT pg_catalog.current_database()")[0]
        self.run(f"ALTER DATABASE {quoted(name)} SET search_path = {path}")

    def tame(self, schema: str) -> None:
        """Let a schema's clock be the suite's; harmless if somebody else has just done it."""
        # Two who replace one function at once are an error.
        self.run("SELECT pg_catalog.pg_advisory_lock(2147483647, 2147483647)")
        try:
            if self.run(TAMED, schema) == [(False,)]:
                self.run(NOW.replace("{schema}", quoted(schema)))
        finally:
            self.run("SELECT pg_catalog.pg_advisory_unlock(2147483647, 2147483647)")

    def learn_to_empty(self, schema: str) -> None:
        """Make the function by which `empty` empties a schema."""
        tables = [f"{quoted(schema)}.{quoted(name)}" for (name,) in self.run(TABLES, schema)]
        tables.append("public.business")
        steps = "".join(EMPTY_ONE.replace("{table}", table) for table in tables)
        self.run(
            "CREATE OR REPLACE FUNCTION suite.empty() RETURNS void LANGUAGE plpgsql AS "
            f"$body$ BEGIN {steps} END $body$"
        )

    # ---------------------------------------------------------------- between the cases

    def empty(self) -> None:
        """Remove every row. Cost: about 0.1 ms; 5 ms if there were thousands."""
        self.run("SELECT suite.empty()", often=True)

    def drop(self, schemas: Iterable[str]) -> None:
        """Remove schemas with all that is in them."""
        for schema in schemas:
            self.run(f"DROP SCHEMA IF EXISTS {quoted(schema)} CASCADE")

    def strangers(self, schema: str) -> list[str]:
        """Name the schemas that a case has made beside its own."""
        return [name for (name,) in self.run(STRANGERS, schema, often=True)]

    # ---------------------------------------------------------------- while a case runs

    def set_clock(self, instant: int | None = None) -> None:
        """Let it be this instant; by default the last one that was given, of which a server that was away knows nothing."""
        self._instant = self._instant if instant is None else instant
        if not self.is_away:
            self.run("SELECT pg_catalog.setval('suite.clock', $1)", self._instant, often=True)

    def working(self) -> list[int]:
        """Name the sessions of others that work, or have a transaction open."""
        return [pid for (pid,) in self.run(WORKING, often=True)]

    def sessions(self) -> list[int]:
        """Name all sessions of others."""
        return [pid for (pid,) in self.run(f"SELECT pid {SESSIONS}")]

    def progress(self) -> tuple[bool, bool]:
        """Say whether any session of others waits for a lock, and whether any works."""
        is_held, is_at_work = self.run(PROGRESS, often=True)[0]
        return is_held, is_at_work

    def alive(self, pids: Sequence[int]) -> list[int]:
        """Say which of these sessions are still there."""
        return [pid for (pid,) in self.run(f"SELECT pid {SESSIONS} AND pid = ANY ($1::int[])", list(pids))]

    def terminate(self, pids: Sequence[int]) -> None:
        """Let the server end these sessions."""
        self.run("SELECT pg_catalog.pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", list(pids))

    def writes(self) -> int:
        """Count the transactions that ever wrote; whoever asks twice sees whether somebody did between."""
        return int(
            self.run("SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text")[0][0]
        )


def connect(dsn: str, **settings: object) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a connection that is nobody's of alkstore, and writes even where others may only read."""
    options = " ".join(
        f"-c {name}={value}" for name, value in {"default_transaction_read_only": "off", **settings}.items()
    )
    return psycopg.connect(
        dsn, autocommit=True, prepare_threshold=None, application_name=APPLICATION, options=options
    )
