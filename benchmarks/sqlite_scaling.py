"""Whether a claim on SQLite costs the same however many rows wait, are delayed, expired, dead, or another queue's.

    python benchmarks/sqlite_scaling.py [--rows 1000000] [--claims 300] [--rounds 3] [--only delayed] [--folder /var/tmp]

Each crowd of rows is made by SQL in a file of its own, with 1,000 ready jobs behind it; each round times claims with an ack
on a file of 1,000 ready jobs, and then on the crowd's. One job is enqueued for each one acked, so that nothing shrinks. The
figure is the median of the claims after the first; the first, which puts expired rows aside, is told apart. So is a claim
that finds nothing ready, which every waiting worker makes. The verdict is "flat" if no ratio is above 1.5.
"""

import argparse
import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from harness import PAYLOAD, machine, machine_lines, median, table, write_reports

from alkstore.payload import encode
from alkstore_sqlite import SqliteStore

BAR: Final = 1.5
READY: Final = 1_000
HOUR: Final = 3_600_000_000
NAME: Final = "bench"

T = TypeVar("T")


class Crowd(NamedTuple):
    """Rows of one kind.

    Attributes:
        queue: Whose they are.
        place: As in the schema: 0 in line, 4 dead.
        shift: From now to ``run_at``, in microseconds.
        expiry: From now to ``expires_at``; None: they do not expire.
        levels: Priorities that they have, in turn.
        is_ready: Whether they can be claimed: then no claim finds nothing.
    """

    name: str
    queue: str = NAME
    place: int = 0
    shift: int = 0
    expiry: int | None = None
    levels: int = 1
    is_ready: bool = False


CROWDS: Final = (
    Crowd("waiting", is_ready=True),
    Crowd("delayed, in front", shift=HOUR),
    Crowd("expired, in front", shift=-HOUR, expiry=-1),
    Crowd("dead", place=4),
    Crowd("another queue's", queue="other"),
    Crowd("waiting, 10 priorities", levels=10, is_ready=True),
    Crowd("delayed, 10 priorities", shift=HOUR, levels=10),
    Crowd("expired, 10 priorities", shift=-HOUR, expiry=-1, levels=10),
)

FILL: Final = """
INSERT INTO alkstore_job (
    queue, payload, headers, place, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout, base_delay,
    created_at, last_error, died_at
)
WITH RECURSIVE row (number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM row WHERE number + 1 < ?1)
SELECT
    ?2, ?3, CAST('{}' AS BLOB), ?4, ?5 + number % ?6, ?7, ?8, 0, 3, 300000000, 5000000,
    ?9, CASE WHEN ?4 = 4 THEN 'failed' END, CASE WHEN ?4 = 4 THEN ?9 END
FROM row
"""


class Times(NamedTuple):
    """Seconds: of the first claim, and medians of the others, of the acks, and of claims that find nothing."""

    first: float
    claim: float
    ack: float
    nothing: float | None


async def _make(path: Path, crowd: Crowd, rows: int) -> None:
    """Make a file: the crowd, and the ready jobs, behind it unless it is ready itself."""
    async with SqliteStore(path, durability="process"):
        pass
    now = time.time_ns() // 1_000
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    if rows:
        expires_at = None if crowd.expiry is None else now + crowd.expiry
        # The ready ones have priority 0 to 9: a crowd in front has higher ones, and one that waits the same.
        base = 0 if crowd.is_ready else 10
        values = (rows, crowd.queue, encode(PAYLOAD), crowd.place, base, crowd.levels)
        connection.execute(FILL, (*values, now + crowd.shift, expires_at, now))
    connection.execute(FILL, (READY, NAME, encode(PAYLOAD), 0, 0, crowd.levels, now, None, now))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


async def _time(path: Path, claims: int, *, finds_nothing: bool) -> Times:
    async with SqliteStore(path, durability="process", wait_timeout=600) as store:
        queue = store.queue(NAME)
        taken, acked = [], []
        for _ in range(claims):
            handle, seconds = await _timed(queue.claim_one)
            assert handle is not None
            taken.append(seconds)
            is_acked, seconds = await _timed(handle.ack)
            assert is_acked
            acked.append(seconds)
            await queue.enqueue(PAYLOAD)
        nothing = None
        if finds_nothing:
            handles = await queue.claim_batch(READY)
            assert len(handles) == READY
            await asyncio.gather(*(handle.ack() for handle in handles))
            await queue.claim_one()
            nothing = median([(await _timed(queue.claim_one))[1] for _ in range(claims)])
            await queue.enqueue_batch([PAYLOAD] * READY)
    return Times(taken[0], median(taken[1:]), median(acked[1:]), nothing)


async def _timed(call: Callable[[], Awaitable[T]]) -> tuple[T, float]:
    began = time.perf_counter()
    result = await call()
    return result, time.perf_counter() - began


class Pair(NamedTuple):
    """One round: the small file, and the crowd's."""

    small: Times
    crowd: Times


def _measure(crowd: Crowd, rows: int, claims: int, rounds: int, folder: Path) -> list[Pair]:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        small, large = Path(place) / "small.db", Path(place) / "large.db"
        asyncio.run(_make(small, Crowd("none", levels=crowd.levels), 0))
        asyncio.run(_make(large, crowd, rows))
        return [
            Pair(
                asyncio.run(_time(small, claims, finds_nothing=True)),
                asyncio.run(_time(large, claims, finds_nothing=not crowd.is_ready)),
            )
            for _ in range(rounds)
        ]


def _row(name: str, pairs: Sequence[Pair]) -> tuple[list[str], float]:
    ratios = [(crowd.claim + crowd.ack) / (small.claim + small.ack) for small, crowd in pairs]
    ratio = median(ratios)
    nothing = [(small.nothing, crowd.nothing) for small, crowd in pairs if small.nothing and crowd.nothing]
    idle = median([crowd / small for small, crowd in nothing]) if nothing else None
    return [
        name,
        _micros([small.claim for small, _ in pairs]),
        _micros([crowd.claim for _, crowd in pairs]),
        _micros([small.ack for small, _ in pairs]),
        _micros([crowd.ack for _, crowd in pairs]),
        f"{ratio:.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
        f"{pairs[0].crowd.first * 1e3:,.1f}",
        _micros([crowd for _, crowd in nothing]) if nothing else "–",
        "–" if idle is None else f"{idle:.2f}",
    ], max(ratio, idle or 0.0)


def _micros(seconds: Sequence[float]) -> str:
    return f"{median(seconds) * 1e6:,.0f}"


HEAD: Final = (
    "rows beside 1,000 ready ones",
    "claim µs, 1,000 alone",
    "claim µs",
    "ack µs, 1,000 alone",
    "ack µs",
    "ratio",
    "first claim ms",
    "finds nothing µs",
    "ratio",
)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--claims", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one round")
    parser.add_argument("--only", default="", help="crowds whose name contains this")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the files stand"
    )
    parser.add_argument("--to", type=Path, help="write the report here, as .md and .json")
    return parser.parse_args()


def main() -> int:
    options = _options()
    rows, rounds = (options.rows // 10, 1) if options.quick else (options.rows, options.rounds)
    figures, lines, worst = {}, [], 0.0
    for crowd in CROWDS:
        if options.only in crowd.name:
            pairs = _measure(crowd, rows, options.claims, rounds, options.folder)
            line, ratio = _row(f"{rows:,} {crowd.name}", pairs)
            lines.append(line)
            worst = max(worst, ratio)
            figures[crowd.name] = [{"small": pair.small, "crowd": pair.crowd} for pair in pairs]
            print(crowd.name, file=sys.stderr)
    facts = {**machine(options.folder), "rounds": str(rounds), "claims a round": str(options.claims)}
    verdict = f"Verdict: {'flat' if worst <= BAR else 'not flat'}, the worst ratio is {worst:.2f} (at most {BAR:g})."
    report = ["# Claims of alkstore-sqlite beside a crowd of rows", "", *machine_lines(facts), ""]
    report += [*table(HEAD, lines), "", verdict]
    write_reports(options.to, report, {"machine": facts, "times": Times._fields, "figures": figures})
    return 0 if worst <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
