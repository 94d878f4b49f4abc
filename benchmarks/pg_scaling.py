"""Whether PostgreSQL stays as fast beside a million rows, under a held snapshot, and after millions of jobs.

    python benchmarks/pg_scaling.py [--part crowds] [--quick] [--rows 1000000] [--seconds 60] [--jobs 10000000]
        [--only delayed] [--version 18] [--folder /var/tmp] [--to benchmarks/reports/pg_scaling]

crowds: claims with an ack beside 1,000 ready jobs alone, and beside a crowd of rows that SQL puts there: first with
connections that planned their statements while the table was small and has not been analyzed since, then after a
VACUUM ANALYZE. One job is enqueued for each one acked, so that nothing shrinks. The figure is the median of the claims after
the first; the first, which puts expired rows aside, is told apart. So is a claim that finds nothing ready.

snapshot: produce 100, claim 100, ack 100, again and again, with and without a REPEATABLE READ transaction that somebody
holds meanwhile, so that nothing that was claimed and acked can be cleaned away.

through: many jobs through one queue, 1,000 a call: the first 100,000, the last 100,000, and the size of the table.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

import asyncpg
from harness import PAYLOAD, machine, machine_lines, median, table, write_reports
from pg_server import add_options, database, facts, started

from alkstore import EnqueueOpts, Queue
from alkstore.payload import encode
from alkstore_pg import PgStore
from alkstore_pg.contract_server import Server

NAME: Final = "bench"
READY: Final = 1_000
HOUR: Final = 3_600_000_000
PATIENCE: Final = 600
CLAIM_BAR: Final = 2.0
"""Milliseconds of a claim, the issue's."""
SNAPSHOT_BAR: Final = 0.7
"""The rate at the end of a minute to that at its beginning, with one priority; the issue's."""
THROUGH_BAR: Final = 1.3
"""Time of the last jobs to that of the first, the issue's."""
SIZE_BAR: Final = 1.5
"""The greatest size of the table in the second half of the jobs to that in the first."""

T = TypeVar("T")


class Verdicts:
    """The bars that were met and missed."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self.are_held = True

    def judge(self, name: str, value: float, bar: float, sign: str, unit: str = "") -> None:
        is_held = value <= bar if sign == "≤" else value >= bar
        self.are_held &= is_held
        verdict = f"{'held' if is_held else 'MISSED'} ({sign} {bar:g}{unit})"
        self.rows.append([name, f"{value:,.2f}{unit}", verdict])


async def _work_off(queue: Queue, count: int) -> int:
    """Claim so many at most, and ack them."""
    handles = await queue.claim_batch(count)
    assert all(await asyncio.gather(*(handle.ack() for handle in handles)))
    return len(handles)


async def _timed(call: Callable[[], Awaitable[T]]) -> tuple[T, float]:
    began = time.perf_counter()
    result = await call()
    return result, time.perf_counter() - began


@contextmanager
def _told(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.0f} s", file=sys.stderr)


# ---------------------------------------------------------------- crowds


class Crowd(NamedTuple):
    """Rows of one kind.

    Attributes:
        queue: Whose they are.
        shift: From now to ``run_at``, in microseconds.
        expiry: From now to ``expires_at``; None: they do not expire.
        levels: Priorities that they have, in turn.
        is_ready: Whether they can be claimed: then no claim finds nothing.
        is_dead: Whether they stand in the other table.
    """

    name: str
    queue: str = NAME
    shift: int = 0
    expiry: int | None = None
    levels: int = 1
    is_ready: bool = False
    is_dead: bool = False


CROWDS: Final = (
    Crowd("waiting", is_ready=True),
    Crowd("delayed, in front", shift=HOUR),
    Crowd("expired, in front", shift=-HOUR, expiry=-1),
    Crowd("dead", is_dead=True),
    Crowd("another queue's", queue="other", is_ready=True),
    Crowd("waiting, 10 priorities", levels=10, is_ready=True),
    Crowd("delayed, 10 priorities", shift=HOUR, levels=10),
    Crowd("expired, 10 priorities", shift=-HOUR, expiry=-1, levels=10),
)

FILL: Final = """
INSERT INTO alkstore.job (
    queue, payload, headers, priority, run_at, expires_at, max_attempts, visibility_timeout, base_delay, created_at
)
SELECT
    $2::text, $3::bytea, '{}', $4::bigint + n % $5::bigint, alkstore.now() + $6::bigint, alkstore.now() + $7::bigint,
    3, 300000000, 5000000, alkstore.now()
FROM generate_series(1, $1::bigint) AS n
"""

BURY: Final = """
INSERT INTO alkstore.dead (
    id, queue, payload, headers, priority, run_at, attempts, max_attempts, visibility_timeout, base_delay, created_at,
    died_at, last_error
)
SELECT -n, $2::text, $3::bytea, '{}', 0, alkstore.now(), 3, 3, 300000000, 5000000, alkstore.now(), alkstore.now(), 'failed'
FROM generate_series(1, $1::bigint) AS n
"""


class Times(NamedTuple):
    """Milliseconds: of the first claim, and medians of the others, of the acks, and of claims that find nothing."""

    first: float
    claim: float
    ack: float
    nothing: float | None


async def _time(queue: Queue, claims: int, *, finds_nothing: bool) -> Times:
    taken, acked, nothing = [], [], None
    for _ in range(claims):
        handle, seconds = await _timed(queue.claim_one)
        assert handle is not None
        taken.append(seconds * 1e3)
        is_acked, seconds = await _timed(handle.ack)
        assert is_acked
        acked.append(seconds * 1e3)
        await queue.enqueue(PAYLOAD)
    if finds_nothing:
        while await _work_off(queue, READY):
            pass
        nothing = median([(await _timed(queue.claim_one))[1] * 1e3 for _ in range(max(claims // 10, 3))])
        await queue.enqueue_batch([PAYLOAD] * READY)
    return Times(taken[0], median(taken[1:]), median(acked[1:]), nothing)


class Crowded(NamedTuple):
    """The ready jobs alone, with the crowd beside them, and with that analyzed."""

    alone: Times
    beside: Times
    analyzed: Times


async def _crowd(dsn: str, crowd: Crowd, rows: int, claims: int) -> Crowded:
    other: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(dsn)
    async with PgStore(dsn, wait_timeout=PATIENCE) as store:
        queue, payload = store.queue(NAME), encode(PAYLOAD)
        await other.execute(FILL, READY, NAME, payload, 0, crowd.levels, 0, None)
        alone = await _time(queue, claims, finds_nothing=True)
        if crowd.is_dead:
            await other.execute(BURY, rows, crowd.queue, payload, timeout=PATIENCE)
        else:
            # The ready ones have priority 0 to 9: a crowd in front has higher ones, and one that waits the same.
            base = 0 if crowd.is_ready else 10
            values = (crowd.queue, payload, base, crowd.levels, crowd.shift, crowd.expiry)
            await other.execute(FILL, rows, *values, timeout=PATIENCE)
        finds_nothing = not crowd.is_ready or crowd.queue != NAME
        beside = await _time(queue, claims, finds_nothing=finds_nothing)
        await other.execute("VACUUM ANALYZE", timeout=PATIENCE)
        analyzed = await _time(queue, claims, finds_nothing=finds_nothing)
    await other.close()
    return Crowded(alone, beside, analyzed)


def _crowds(server: Server, options: argparse.Namespace, verdicts: Verdicts) -> tuple[list[str], object]:
    rows = options.rows // 10 if options.quick else options.rows
    lines, figures = [], {}
    for crowd in CROWDS:
        if options.only not in crowd.name:
            continue
        name = f"{rows:,} {crowd.name}"
        with _told(name), database(server) as dsn:
            each = asyncio.run(_crowd(dsn, crowd, rows, options.claims))
        verdicts.judge(
            f"claim beside {name}", max(each.beside.claim, each.analyzed.claim), CLAIM_BAR, "≤", " ms"
        )
        figures[crowd.name] = each._asdict()
        claims = [f"{times.claim:.2f}" for times in each]
        acks = [f"{times.ack:.2f}" for times in each]
        nothing = ["–" if times.nothing is None else f"{times.nothing:.2f}" for times in each]
        lines.append([name, *claims, f"{each.beside.first:,.1f}", *acks, *nothing])
    three = ("alone", "beside", "analyzed")
    head = ("ms", *(f"claim {way}" for way in three), "first claim", *(f"ack {way}" for way in three))
    return table((*head, *(f"nothing {way}" for way in three)), lines), figures


# ---------------------------------------------------------------- a held snapshot

PORTION: Final = 100
STEP: Final = 5.0
"""Seconds of one figure."""


async def churn(dsn: str, seconds: float, levels: int, *, is_held: bool, step: float) -> list[float]:
    """Produce and ack for so long; gives jobs in a second, for each step."""
    holder: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(dsn)
    async with PgStore(dsn) as store:
        queue = store.queue(NAME)
        each = [EnqueueOpts(priority=at % levels) for at in range(PORTION)]
        await queue.enqueue_batch([PAYLOAD] * PORTION, each=each)
        if is_held:
            await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await holder.fetch("SELECT FROM alkstore.job LIMIT 1")
        began = time.monotonic()
        counts = [0] * round(seconds / step)
        while (at := int((time.monotonic() - began) / step)) < len(counts):
            await queue.enqueue_batch([PAYLOAD] * PORTION, each=each)
            counts[at] += await _work_off(queue, PORTION)
    await holder.close()
    return [count / step for count in counts]


def _snapshot(server: Server, options: argparse.Namespace, verdicts: Verdicts) -> tuple[list[str], object]:
    seconds = options.seconds / 10 if options.quick else options.seconds
    lines, figures = [], {}
    for levels in (1, 10):
        for is_held in (False, True):
            name = f"{'held' if is_held else 'no'} snapshot, {levels} {'priority' if levels == 1 else 'priorities'}"
            with _told(name), database(server) as dsn:
                step = min(STEP, seconds / 4)
                rates = asyncio.run(churn(dsn, seconds, levels, is_held=is_held, step=step))
            part = max(len(rates) // 6, 1)  # 10 s of 60
            ratio = sum(rates[-part:]) / sum(rates[:part])
            if is_held and levels == 1:
                verdicts.judge(f"{name}: the end to the beginning", ratio, SNAPSHOT_BAR, "≥")
            lines.append([name, f"{ratio:.2f}", " ".join(f"{rate:,.0f}" for rate in rates)])
            figures[name] = rates
    head = ("", "last sixth / first", f"jobs/s, each of {min(STEP, seconds / 4):g} s")
    return table(head, lines), figures


# ---------------------------------------------------------------- through one queue

PARTS: Final = 100
SIZE: Final = "SELECT pg_total_relation_size('alkstore.job')"


class Part(NamedTuple):
    """A share of the jobs: how many of them in a second, and the bytes of the table and its indexes after it."""

    rate: float
    size: int


async def _through(dsn: str, jobs: int) -> list[Part]:
    watcher: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(dsn)
    parts = []
    async with PgStore(dsn) as store:
        queue = store.queue(NAME)
        await queue.enqueue_batch([PAYLOAD] * READY)
        share = max(jobs // PARTS // READY, 1) * READY

        async def pass_through() -> None:
            for _ in range(0, share, READY):
                _, done = await asyncio.gather(
                    queue.enqueue_batch([PAYLOAD] * READY), _work_off(queue, READY)
                )
                assert done > 0

        for _ in range(0, jobs, share):
            _, seconds = await _timed(pass_through)
            parts.append(Part(share / seconds, await watcher.fetchval(SIZE)))
    await watcher.close()
    return parts


def _long(server: Server, options: argparse.Namespace, verdicts: Verdicts) -> tuple[list[str], object]:
    jobs = options.jobs // 100 if options.quick else options.jobs
    with _told(f"{jobs:,} jobs"), database(server) as dsn:
        parts = asyncio.run(_through(dsn, jobs))
    size, share = len(parts) // 2, jobs // len(parts)
    before, after = (max(part.size for part in half) for half in (parts[:size], parts[size:]))
    name = f"{jobs:,} jobs through one queue"
    verdicts.judge(f"{name}: time of the last {share:,}", parts[0].rate / parts[-1].rate, THROUGH_BAR, "≤")
    verdicts.judge(f"{name}: size, second half to first", after / before, SIZE_BAR, "≤")
    shown = sorted(
        {0, *(len(parts) * at // 10 - 1 for at in range(1, 11) if len(parts) >= 10), len(parts) - 1}
    )
    rows = [
        [f"{(at + 1) * share:,}", f"{parts[at].rate:,.0f}", f"{parts[at].size / 2**20:,.1f}"] for at in shown
    ]
    return table(("jobs so far", "jobs/s", "table MiB"), rows), parts


# ---------------------------------------------------------------- the report

PARTS_OF_IT: Final = {"crowds": _crowds, "snapshot": _snapshot, "through": _long}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=tuple(PARTS_OF_IT), help="this one alone")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the rows and seconds, a hundredth of the jobs"
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each crowd")
    parser.add_argument("--claims", type=int, default=300, help="timed beside each crowd")
    parser.add_argument("--only", default="", help="crowds whose name contains this")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run under a snapshot")
    parser.add_argument("--jobs", type=int, default=10_000_000, help="through one queue")
    add_options(parser)
    return parser.parse_args()


def main() -> int:
    options = _options()
    verdicts = Verdicts()
    tables: list[str] = []
    figures: dict[str, object] = {}
    with started(options.folder, options.version) as server:
        for name, measure in PARTS_OF_IT.items():
            if options.part in (None, name):
                lines, figures[name] = measure(server, options, verdicts)
                tables += ["", f"## {name}", "", *lines]
        told = machine(options.folder, facts(server))
    report = ["# Many rows and old snapshots on alkstore-pg", "", *machine_lines(told), ""]
    report += [*table(("bar", "measured", "verdict"), verdicts.rows), *tables]
    write_reports(options.to, report, {"machine": told, "figures": figures})
    return 0 if verdicts.are_held else 1


if __name__ == "__main__":
    sys.exit(main())
