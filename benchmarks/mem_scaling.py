"""How fast alkstore-mem is, awaited one by one, and whether that stays flat as the backlog grows.

    python benchmarks/mem_scaling.py [--jobs 20000] [--largest 1000000] [--rounds 3]

Enqueues, and claims with an ack, are timed on top of 1,000 … 1,000,000 jobs that wait or are delayed. Each figure is the
median of the rounds, which visit the sizes in turn, so that a machine that slows down slows all of them. The engine does
no I/O and never waits, so seconds are those of the processor: on an idle machine they are the wall's, and on a busy one
other programs do not count. The verdict is "flat" if the slowest size takes at most twice as long as the fastest.
"""

import argparse
import asyncio
import gc
import json
import platform
import resource
import statistics
import sys
import time
from pathlib import Path

from alkstore_mem import MemStore

PAYLOAD = {"to": "ada@example.org", "n": 7}
KINDS = ("waiting", "delayed")


async def _fill(store: MemStore, backlog: int, kind: str) -> None:
    queue = store.queue("bench")
    delay = 3600 if kind == "delayed" else None
    for start in range(0, backlog, 10_000):
        await queue.enqueue_batch([PAYLOAD] * min(10_000, backlog - start), delay=delay)


async def _enqueue(store: MemStore, jobs: int) -> float:
    queue = store.queue("bench")
    began = time.process_time()
    for _ in range(jobs):
        await queue.enqueue(PAYLOAD)
    return jobs / (time.process_time() - began)


async def _claim_and_ack(store: MemStore, jobs: int) -> float:
    queue = store.queue("bench")
    began = time.process_time()
    for _ in range(jobs):
        handle = await queue.claim_one()
        assert handle is not None
        await handle.ack()
    return jobs / (time.process_time() - began)


async def _measure(backlog: int, kind: str, jobs: int) -> tuple[float, float]:
    async with MemStore() as store:
        await _fill(store, backlog, kind)
        gc.collect()
        gc.freeze()  # a collection walks every job that waits: that is Python's cost, not a claim's
        enqueued = await _enqueue(store, jobs)
        claimed = await _claim_and_ack(store, jobs)
        gc.unfreeze()
    return enqueued, claimed


def _spread(rates: list[float]) -> float:
    return max(rates) / min(rates)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    sizes = [size for size in (1_000, 10_000, 100_000, 1_000_000) if size <= options.largest]
    rates: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(options.rounds):
        for kind in KINDS:
            for size in sizes:
                rates.setdefault((kind, size), []).append(asyncio.run(_measure(size, kind, options.jobs)))
    print(f"Python {platform.python_version()}, {options.jobs:,} jobs a figure, median of {options.rounds}")
    print(f"{'backlog':>20}  {'enqueue/s':>12}  {'claim+ack/s':>12}")
    medians = {}
    for (kind, size), pairs in rates.items():
        enqueue, claim = (statistics.median(column) for column in zip(*pairs, strict=True))
        medians[kind, size] = (enqueue, claim)
        print(f"{size:>12,} {kind:>7}  {enqueue:>12,.0f}  {claim:>12,.0f}")
    spreads = [_spread(list(column)) for column in zip(*medians.values(), strict=True)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"slowest against fastest: enqueue {spreads[0]:.2f}, claim+ack {spreads[1]:.2f}; peak {peak:,.0f} MiB"
    )
    is_flat = max(spreads) <= 2
    print(f"verdict: {'flat' if is_flat else 'not flat'}")
    if options.json:
        report = {f"{kind} {size}": pair for (kind, size), pair in medians.items()}
        options.json.write_text(json.dumps(report, indent=2), encoding="utf-8")
    return 0 if is_flat else 1


if __name__ == "__main__":
    sys.exit(main())
