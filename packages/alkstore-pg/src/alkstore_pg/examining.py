"""What only the server can tell of a storage's state: bloat, who holds old rows back, how many connections are left."""

import time
from collections.abc import Iterator, Sequence
from typing import Final

from alkstore import statements
from alkstore.diagnosis import Diagnosis, Finding
from alkstore_pg.link import Traffic
from alkstore_pg.pool import Pool
from alkstore_pg.session import Row, Session
from alkstore_pg.surroundings import Options

__all__ = ["examine"]

OLD: Final = 300.0
"""Seconds for which a transaction may be open before it is one that somebody forgot."""

MANY_DEAD: Final = 100_000
"""Dead rows of one table that matter, where they are also more than the live ones."""

FEW_LEFT: Final = 0.9
"""Part of the server's connections in use from which the next deployment may find none."""

SECOND: Final = 1_000_000

_SQL: Final = statements.load("alkstore_pg", "examining")


async def examine(options: Options, *, old: float = OLD) -> Diagnosis:
    """Look at the server over one connection; raises `DatabaseError` where that cannot be. Cost: four round trips.

    Args:
        old: Seconds for which a transaction may be open.
    """
    pool = Pool(options.dial, options.schema, size=1, wait_timeout=options.wait_timeout, traffic=Traffic())
    try:
        return await pool.run(lambda on: _look(on, options.schema.name, old), reads=True)
    finally:
        await pool.close()


async def _look(on: Session, schema: str, old: float) -> Diagnosis:
    sent = time.time()
    ((version, now, database, used, most, connections),) = await on.fetch(_SQL["surroundings"], schema)
    received = time.time()
    tables = await on.fetch(_SQL["tables"], schema)
    snapshots = await on.fetch(_SQL["snapshots"])
    idlers = await on.fetch(_SQL["idlers"])
    facts: dict[str, str | int | float | None] = {
        "postgresql": version,
        "database-bytes": database,
        "schema-bytes": used,
        "connections": connections,
        "max-connections": most,
        "dead-rows": sum(row[2] for row in tables),
        "oldest-snapshot-s": max((row[3] for row in snapshots if row[3] is not None), default=None),
    }
    found = (
        *_held(snapshots, old),
        *_idle(idlers, old),
        *_bloated(tables),
        *_crowded(connections, most),
    )
    # The server read its clock somewhere between the two; in the middle it is wrong by half the way at most.
    return Diagnosis(facts, found, clock_offset=now / SECOND - (sent + received) / 2)


def _held(rows: Sequence[Row], old: float) -> Iterator[Finding]:
    for what, who, xids, seconds in rows:
        if what == "replication slot" or (seconds is not None and seconds > old):
            since = "" if seconds is None else f" since {seconds:,.0f} s"
            yield Finding(
                "old-snapshot",
                f"{what} {who} holds back what {xids:,} transactions have left{since}",
                "vacuum can clear up nothing that came after it, and claims become slower: end it "
                "(pg_terminate_backend, ROLLBACK PREPARED, pg_drop_replication_slot), or find out why it lasts",
                is_problem=what != "replication slot",
            )


def _idle(rows: Sequence[Row], old: float) -> Iterator[Finding]:
    for pid, name, seconds in rows:
        if seconds > old:
            yield Finding(
                "idle-in-transaction",
                f"session {pid}{f' ({name})' if name else ''} has a transaction open and does nothing since {seconds:,.0f} s",
                "what it has enqueued is not seen, and readers of streams wait below it: end it, and set "
                "idle_in_transaction_session_timeout",
            )


def _bloated(rows: Sequence[Row]) -> Iterator[Finding]:
    for name, live, dead, since in rows:
        if dead > MANY_DEAD and dead > live:
            last = "never" if since is None else f"{since:,.0f} s ago"
            yield Finding(
                "bloat",
                f"table {name} has {dead:,} dead rows beside {live:,} live ones; it was vacuumed {last}",
                "see that autovacuum is on and keeps up, and that no old snapshot holds it back; VACUUM it by hand meanwhile",
            )


def _crowded(connections: int, most: int) -> Iterator[Finding]:
    if connections > most * FEW_LEFT:
        yield Finding(
            "connections",
            f"{connections:,} of the server's {most:,} connections are in use",
            "make pools smaller (pool_size), or put PgBouncer in between",
        )
