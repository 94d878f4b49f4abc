"""Sides in processes of their own, that work in turn: each one's time, processor and memory are its own.

A side lives in a process that does nothing until it is its turn, so that neither its threads nor its garbage are in another
one's figures. Slices are short and visit the sides in turn (A B A B …): a machine that slows down slows all of them.
"""

import asyncio
import gc
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from workloads import Run, Work

__all__ = ["Actor", "Sample", "Slices", "in_turn", "jiffies", "resident"]

SPAWN: Final = multiprocessing.get_context("spawn")
TICK: Final = os.sysconf("SC_CLK_TCK")
LONGEST: Final = 6.0
"""Seconds that one slice may take; a side that is slower than that is told apart by its rate all the same."""


class Sample(NamedTuple):
    """What one slice cost; ``cpu`` and ``all_cpu`` in µs an operation, ``grown`` in KiB."""

    rate: float
    cpu: float
    all_cpu: float
    grown: float


# ---------------------------------------------------------------- what the kernel counts


def resident(name: str = "VmRSS") -> int:
    """Give the KiB of memory that this process has now, or had at most (VmHWM); 0 where the kernel does not tell."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return  # then the peak is that of the whole life, which is larger: no side is flattered


def jiffies() -> tuple[float, float]:
    """Give the seconds that the machine's processors worked, and those that they idled, since it started."""
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    except OSError:
        return 0.0, 0.0
    user, nice, system, idle, wait, *rest = (int(each) / TICK for each in line[1:9])
    return user + nice + system + sum(rest), idle + wait


# ---------------------------------------------------------------- the process


async def _measure(side: Any, run: Run, count: int) -> Sample:
    gc.collect()
    gc.freeze()  # what lives by now is not the slice's to walk through
    _forget_peak()
    before = resident()
    everybody, cpu, wall = jiffies()[0], time.process_time(), time.perf_counter()
    await run(side, count)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    everybody = jiffies()[0] - everybody
    grown = max(resident("VmHWM") - before, 0)
    gc.unfreeze()
    return Sample(count / wall, cpu / count * 1e6, everybody / count * 1e6, grown)


async def _next(pipe: Connection) -> Any:
    """Wait for the next message without a thread, the loop alive: what a side does by itself goes on."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pipe.fileno(), arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(pipe.fileno())
    return pipe.recv()


async def _live(kind: type, place: object, setting: str, pipe: Connection) -> None:
    side: Any = await kind().open(place, setting)
    pipe.send(None)
    try:
        while (message := await _next(pipe)) is not None:
            what, run, count = message
            if what == "set":
                setattr(side, run, count)
                pipe.send(None)
            elif what == "measure":
                pipe.send(await _measure(side, run, count))
            else:
                await run(side, count)
                pipe.send(None)
    finally:
        await side.close()


def _act(kind: type, place: object, setting: str, processor: int | None, pipe: Connection) -> None:
    if processor is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {processor})
    try:
        asyncio.run(_live(kind, place, setting, pipe))
    except BaseException:
        pipe.send(traceback.format_exc())
        raise
    pipe.send(None)


class Actor:
    """A side in a process of its own, opened when this is made; on one processor alone, if one is named."""

    def __init__(self, kind: type, place: object, setting: str = "", processor: int | None = None) -> None:
        self._pipe, its = SPAWN.Pipe()
        self._child = SPAWN.Process(target=_act, args=(kind, place, setting, processor, its))
        self._child.start()
        its.close()

    def __enter__(self) -> Self:
        self._answer()
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self._child.kill()
        else:
            self._pipe.send(None)
            self._answer()
        self._child.join()
        self._pipe.close()

    def do(self, run: Run, count: int) -> None:
        """Have it done, unmeasured."""
        self._pipe.send(("do", run, count))
        self._answer()

    def set(self, name: str, value: object) -> None:
        """Have an attribute of the side changed."""
        self._pipe.send(("set", name, value))
        self._answer()

    def measure(self, run: Run, count: int) -> Sample:
        """Have it done, and tell what it cost."""
        self.begin(run, count)
        return self.end()

    def begin(self, run: Run, count: int) -> None:
        """Have it begun, beside others."""
        self._pipe.send(("measure", run, count))

    def end(self) -> Sample:
        """Tell what it cost that was begun."""
        sample = self._answer()
        assert isinstance(sample, Sample)
        return sample

    def _answer(self) -> object:
        try:
            answer: object = self._pipe.recv()
        except EOFError:
            raise RuntimeError("a side's process ended by itself") from None
        if isinstance(answer, str):
            raise RuntimeError(f"a side failed:\n{answer}")
        return answer


# ---------------------------------------------------------------- in turn


class Slices(NamedTuple):
    """How many slices, and how long a part of a slice's time each is."""

    number: int
    share: float


def in_turn(work: Work, actors: Mapping[str, Actor], slices: Slices) -> dict[str, list[Sample]]:
    """Warm the sides up, find how many operations make a slice of each, and visit them in turn."""
    counts = {name: _count(work, actor, work.seconds * slices.share) for name, actor in actors.items()}
    samples: dict[str, list[Sample]] = {name: [] for name in actors}
    order = list(actors.items())
    for turn in range(slices.number):
        # In one order only, what a side leaves behind (a full disk cache, a checkpoint) would always meet the same one.
        for name, actor in order if turn % 2 == 0 else reversed(order):
            if work.needs is not None:
                actor.do(work.needs, counts[name])
            samples[name].append(actor.measure(work.run, counts[name]))
    print(f"{work.name}: {_told(samples)}", file=sys.stderr)
    return samples


def _count(work: Work, actor: Actor, seconds: float) -> int:
    """Give the operations that take so long: found by doing more and more of them, which warms the side up, too."""
    count = work.step
    while True:
        if work.needs is not None:
            actor.do(work.needs, count)
        took = count / actor.measure(work.run, count).rate
        if took >= seconds / 3 or took > LONGEST:
            return max(round(count * seconds / took / work.step), 1) * work.step
        grow = min(max(seconds / 2 / took, 2), 8)
        count = max(round(count * grow / work.step), 1) * work.step


def _told(samples: Mapping[str, Sequence[Sample]]) -> str:
    medians = {name: sorted(each.rate for each in found)[len(found) // 2] for name, found in samples.items()}
    return ", ".join(f"{name} {rate:,.0f}/s" for name, rate in medians.items())
