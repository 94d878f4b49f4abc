"""Steps that the rows about wakes and subscriptions share."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from alkstore import EventReceiver, Store, Stream, StreamEvent, Wake, WakeReceiver
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.factory import Fault, Unsupported

SECOND = ("plain", "second")
"""The modes of a promise about what one store does and another one on the same storage sees."""


async def woken(ctx: Context, receiver: WakeReceiver, channel: str, promise: str) -> None:
    """Receive one wake, of this channel, that must be there or come."""
    ctx.expect(await ctx.soon(receiver.recv(), promise), Wake(channel), promise)


async def pending(ctx: Context, receiver: WakeReceiver) -> int:
    """Take the wakes that are there once everything has been delivered; gives how many."""
    await ctx.settle()
    count = 0
    while await receiver.try_recv() is not None:
        count += 1
    return count


async def received(ctx: Context, receiver: EventReceiver, promise: str) -> StreamEvent:
    """Receive one event that must be there or come."""
    event = await ctx.soon(receiver.recv(), promise)
    ctx.that(event is not None, promise, observed=event)
    assert event is not None
    return event


async def received_offsets(ctx: Context, receiver: EventReceiver, count: int, promise: str) -> list[int]:
    """Receive so many events that must be there or come; gives their offsets in the order in which they came."""
    return [(await received(ctx, receiver, promise)).offset for _ in range(count)]


async def waiting_offsets(ctx: Context, receiver: EventReceiver) -> list[int]:
    """Take the events that are there once everything has been delivered; gives their offsets."""
    await ctx.settle()
    offsets = []
    while (event := await receiver.try_recv()) is not None:
        offsets.append(event.offset)
    return offsets


async def offsets(stream: Stream, after: int = 0, limit: int = 5_000) -> list[int]:
    """Read the offsets of the events after one."""
    return [event.offset for event in await stream.read_since(after, limit)]


async def next_outside(heard: AsyncIterator[bytes]) -> bytes:
    """Give the next notify payload that somebody sees who is not alkstore."""
    return await anext(heard)


def broken(ctx: Context, fault: Fault, store: Store) -> AbstractAsyncContextManager[None]:
    """Break a store's storage for the length of a block; where the factory cannot, the case shows nothing."""
    found = ctx.factory.fault(fault, store)
    if isinstance(found, Unsupported):
        ctx.skip_inconclusive(found.reason)
    return found
