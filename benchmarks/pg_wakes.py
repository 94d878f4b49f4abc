"""How soon a job that one process enqueues on PostgreSQL is claimed by an idle worker in another.

    python benchmarks/pg_wakes.py [--quick] [--rounds 3] [--version 18] [--folder /var/tmp] [--to benchmarks/reports/pg_wakes]

A wake is timed from the call of ``enqueue`` in the one process to the return of ``claim`` in the other, which waited: both
read the machine's monotonic clock. So the commit's wait for the disk is in it, and the claim's. "Publish to receive" is the
same for a stream, whose reader has nothing to commit. The rounds visit the gaps in turn.
"""

import argparse
import asyncio
import multiprocessing
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

from harness import machine, machine_lines, median, table, write_reports
from pg_server import add_options, database, facts, started

from alkstore_pg import PgStore
from alkstore_pg.contract_server import Server

SPAWN: Final = multiprocessing.get_context("spawn")
NAME: Final = "bench"
GAPS: Final = {0.005: 400, 0.1: 60, 0.5: 20}
"""Seconds between two, and how many."""
WARM: Final = 5
BAR: Final = 3.0
"""Milliseconds that half of the wakes take at most, as the issue asks."""
LIMIT: Final = 60.0


class Kind(NamedTuple):
    """What is waited for: how it is sent, and how it is received. What is sent is the instant of the call."""

    name: str
    send: Callable[[PgStore], Coroutine[Any, Any, None]]
    receive: Callable[[PgStore, int], Coroutine[Any, Any, list[float]]]
    bar: float | None


async def _enqueue(store: PgStore) -> None:
    await store.queue(NAME).enqueue({"at": time.monotonic_ns()})


async def _claim(store: PgStore, count: int) -> list[float]:
    queue = store.queue(NAME)
    taken = []
    for _ in range(count):
        handle = await queue.claim(timeout=LIMIT)
        came = time.monotonic_ns()
        assert handle is not None
        taken.append(_elapsed(handle.job.payload, came))
        await handle.ack()
    return taken


async def _publish(store: PgStore) -> None:
    await store.stream(NAME).publish({"at": time.monotonic_ns()})


async def _receive(store: PgStore, count: int) -> list[float]:
    taken = []
    async with asyncio.timeout(LIMIT), store.stream(NAME).subscribe(after=0) as events:
        for _ in range(count):
            event = await events.recv()
            came = time.monotonic_ns()
            assert event is not None
            taken.append(_elapsed(event.payload, came))
    return taken


def _elapsed(payload: object, came: int) -> float:
    assert isinstance(payload, dict)
    return (came - int(payload["at"])) / 1e6


KINDS: Final = (
    Kind("enqueue to claim", _enqueue, _claim, BAR),
    Kind("publish to receive", _publish, _receive, None),
)


def _produce(dsn: str, kind: int, gap: float, count: int) -> None:
    """In a process of its own: send now and then."""

    async def run() -> None:
        async with PgStore(dsn) as store:
            for at in range(count):
                # Not a plain gap, or both processes would fall into step.
                await asyncio.sleep(gap * (0.8 + 0.4 * (at * 0.618 % 1)))
                await KINDS[kind].send(store)

    asyncio.run(run())


async def _consume(dsn: str, kind: int, gap: float, count: int) -> list[float]:
    async with PgStore(dsn) as store:
        waiting = asyncio.create_task(KINDS[kind].receive(store, count + WARM))
        producer = SPAWN.Process(target=_produce, args=(dsn, kind, gap, count + WARM))
        producer.start()
        taken = await waiting
        await asyncio.to_thread(producer.join)
    return taken[WARM:]


class Wakes(NamedTuple):
    """Milliseconds of each round's wakes."""

    kind: Kind
    gap: float
    rounds: list[list[float]]


def _measure(server: Server, rounds: int, share: float) -> list[Wakes]:
    measured = [Wakes(kind, gap, []) for kind in KINDS for gap in GAPS]
    for turn in range(rounds):
        for kind, gap, taken in measured:
            with database(server) as dsn:
                count = max(int(GAPS[gap] * share), 8)
                taken.append(asyncio.run(_consume(dsn, KINDS.index(kind), gap, count)))
            print(f"round {turn + 1}: {kind.name}, {gap * 1e3:g} ms apart", file=sys.stderr)
    return measured


def _rows(measured: Sequence[Wakes]) -> tuple[list[list[str]], bool]:
    rows, are_held = [], True
    for kind, gap, rounds in measured:
        halves = median([median(taken) for taken in rounds])
        everything = sorted(each for taken in rounds for each in taken)
        p99 = everything[int(len(everything) * 0.99)]
        is_held = kind.bar is None or halves <= kind.bar
        are_held &= is_held
        verdict = "–" if kind.bar is None else f"{'held' if is_held else 'MISSED'} (p50 ≤ {kind.bar:g})"
        numbers = [f"{halves:.2f}", f"{p99:.2f}", f"{everything[-1]:.2f}", verdict]
        rows.append([f"{kind.name}, {gap * 1e3:g} ms apart", str(len(everything)), *numbers])
    return rows, are_held


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a fifth of the wakes, one round")
    add_options(parser)
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    with started(options.folder, options.version) as server:
        measured = _measure(server, rounds, 0.2 if options.quick else 1.0)
        told = {**machine(options.folder, facts(server)), "rounds": str(rounds)}
    rows, are_held = _rows(measured)
    lines = ["# Wakes of alkstore-pg from one process to another", "", *machine_lines(told), ""]
    lines += ["Milliseconds; p50 is the median of the rounds' own, the others are of all wakes together:", ""]
    lines += table(("", "wakes", "p50", "p99", "longest", "bar"), rows)
    figures = [{"name": kind.name, "gap": gap, "ms": taken} for kind, gap, taken in measured]
    write_reports(options.to, lines, {"machine": told, "wakes": figures})
    return 0 if are_held else 1


if __name__ == "__main__":
    sys.exit(main())
