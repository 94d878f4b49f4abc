"""Steps that the stream rows share."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from alkstore import Store, Stream, Tx
from alkstore_contract_suite.context import Context

T = TypeVar("T")

STORED: Final = ("plain", "second", "reopen", "crash-drop", "crash-kill")
"""The modes of a promise about what is written: whoever looks later, it is there."""

LAST: Final = 2**63 - 1
FIRST: Final = -(2**63)


async def filled(stream: Stream, count: int) -> list[int]:
    """Publish so many events; gives their offsets."""
    return await stream.publish_batch(range(count))


class Held:
    """A transaction in a task of its own, which does what it is told and stays open until it is told to end.

    The task that begins a transaction must not write beside it, and a row that wants two open transactions, or one
    and a writer, needs a task for each.
    """

    def __init__(self, ctx: Context, store: Store) -> None:
        self._ctx = ctx
        self._store = store
        self._end = asyncio.Event()
        self._is_begun = asyncio.Event()
        self._keep = True

    def begin(self, work: Callable[[Tx], Awaitable[T]]) -> "asyncio.Task[T]":
        """Begin, do the work and hold; the task's result is the work's, once it has ended."""
        return self._ctx.start(self._run(work))

    async def ready(self, promise: str) -> None:
        """Wait until the work is done."""
        await self._ctx.soon(self._is_begun.wait(), promise)

    @property
    def is_ready(self) -> bool:
        """Whether the work is done; where one writer holds up another it may have to wait first."""
        return self._is_begun.is_set()

    def commit(self) -> None:
        self._end.set()

    def roll_back(self) -> None:
        self._keep = False
        self._end.set()

    async def _run(self, work: Callable[[Tx], Awaitable[T]]) -> T:
        async with self._store.begin_tx() as tx:
            result = await work(tx)
            self._is_begun.set()
            await self._end.wait()
            if not self._keep:
                await tx.rollback()
        return result


def publishing(name: str) -> Callable[[Tx], Awaitable[int]]:
    """Give the work of publishing one event to a stream."""
    return lambda tx: tx.publish(name, "event")


def saving(name: str, consumer: str, offset: int) -> Callable[[Tx], Awaitable[None]]:
    """Give the work of saving a consumer's position."""
    return lambda tx: tx.save_offset(name, consumer, offset)


def rising(found: Sequence[int]) -> bool:
    """Whether each is greater than the one before."""
    return all(before < after for before, after in itertools.pairwise(found))
