"""Steps that the rows about several processes share; what a child runs gets its store first."""

import os
import random
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, TypeVar

from alkstore import JobHandle, Store
from alkstore_contract_suite.child import hold, tell
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.factory import Inspected
from alkstore_contract_suite.failure import NotRaced
from alkstore_contract_suite.racing import LEAST_OVERLAP, overlapping

T = TypeVar("T")

ALONE: Final = 3_600.0
"""Seconds between two polls of a store in rows about wakes: what comes in time was not polled for."""


def overlapped(ctx: Context, parts: Sequence[Sequence[int]]) -> None:
    """Demand that the processes really worked at the same time.

    Args:
        parts: For each process the numbers of what it did, in one count of all of them.
    """
    owners = {number: process for process, numbers in enumerate(parts) for number in numbers}
    found = overlapping([owners[number] for number in sorted(owners)])
    ctx.note(f"{found} of {len(parts)} processes overlapped, doing {[len(part) for part in parts]}")
    if found < LEAST_OVERLAP:
        raise NotRaced(f"{found} of {len(parts)} processes overlapped another one")


async def give_way() -> None:
    """Let a moment of real time pass between two steps of a process that works beside others.

    Whoever has just written may be quicker to write again than those who wait for it, and rows about several at work
    would see one after the other.
    """
    await hold(random.uniform(0, 0.001))


async def claimed(store: Store, name: str) -> object:
    """Wait for a job in a child; gives its payload."""
    handle = await store.queue(name).claim()
    return None if handle is None else handle.job.payload


async def taken(store: Store, name: str, count: int) -> list[JobHandle]:
    """Claim so many jobs, which must be ready."""
    handles = await store.queue(name).claim_batch(count)
    if len(handles) != count:
        raise RuntimeError(f"{len(handles)} of {count} jobs were ready in {name!r}")
    return handles


def joined(parts: Iterable[Iterable[T]]) -> list[T]:
    """Give what several processes gave as one list."""
    return [each for part in parts for each in part]


@contextmanager
def folder() -> Iterator[str]:
    """Give a folder in which processes leave marks for each other, past the engine."""
    with tempfile.TemporaryDirectory(prefix="alkstore-marks-") as path:
        yield path


@asynccontextmanager
async def marked(folder: str, name: object, seconds: float = 0.0) -> AsyncIterator[None]:
    """Be alone with something for the length of a block; whoever finds somebody else's mark tells of it."""
    mark = os.path.join(folder, str(name))  # paths as text: this is no place for blocking methods
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        tell(("not alone", name))
    await hold(seconds)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):  # somebody who was not alone either took it away
            os.unlink(mark)


async def sound(ctx: Context) -> None:
    """Hold the storage to being whole, where the factory can look at it past the engine."""
    if isinstance(ctx.factory, Inspected):
        ctx.expect(await ctx.factory.sound(), None, "the storage is sound")
