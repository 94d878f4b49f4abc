"""Rows WAKE-06 and WAKE-09: how both kinds of receiver answer, end, and survive a cancelled wait."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from alkstore import Closed, EventReceiver, InvalidArgument, Store, StreamEvent, Wake, WakeReceiver
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._receiving import SECOND, pending, received, woken

Receiver = WakeReceiver | EventReceiver
Call = tuple[Callable[[], Awaitable[Any]], object]
Kind = tuple[Callable[[Store, str], Awaitable[Receiver]], Callable[[Store, str], Awaitable[object]]]


async def _listen(store: Store, name: str) -> Receiver:
    return await store.listen(name)


async def _subscribe(store: Store, name: str) -> Receiver:
    return await store.stream(name).subscribe()


KINDS: Final[dict[str, Kind]] = {
    "a wake receiver": (_listen, lambda store, name: store.notify(name)),
    "an event receiver": (_subscribe, lambda store, name: store.stream(name).publish("news")),
}


def _ends(receiver: Receiver) -> dict[str, Call]:
    """Give the calls that end quietly on a closed receiver, each with what it gives then."""
    ends: dict[str, Call] = {"recv": (receiver.recv, None)}
    if isinstance(receiver, EventReceiver):
        ends["recv_page"] = (receiver.recv_page, [])
    return ends


@row(
    "WAKE-06",
    text="try_recv gives None when idle and what is there when not; closed, it raises Closed.",
    oracle="both kinds before a commit, after it, and after the close",
    modes=SECOND,
    needs=("listen",),
)
async def try_recv_never_waits(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for kind, (opened, commit) in KINDS.items():
        name = ctx.name("news")
        receiver = await opened(mine, name)
        ctx.expect(await ctx.soon(receiver.try_recv(), "try_recv never waits"), None, f"{kind} idles")
        await commit(other, name)
        await ctx.settle()
        found = await ctx.soon(receiver.try_recv(), "try_recv never waits")
        ctx.that(found is not None, f"{kind} gives what is there", observed=found)
        ctx.expect(await receiver.try_recv(), None, f"{kind} idles again")
        await receiver.aclose()
        for _ in range(2):
            async with ctx.refuses(Closed, f"try_recv on {kind} that is closed is refused"):
                await receiver.try_recv()


@row(
    "WAKE-06",
    text="An event receiver's try_recv gives None only if no later event is committed.",
    oracle="try_recv right after each publish, with nothing awaited in between",
    modes=SECOND,
)
async def try_recv_sees_every_committed_event(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    async with mine.stream(name).subscribe() as events:
        for number in range(20):
            offset = await other.stream(name).publish(number)
            event = await events.try_recv()
            ctx.expect(event and event.offset, offset, "try_recv sees what is committed")
            ctx.expect(await events.try_recv(), None, "no event comes twice")


@row(
    "WAKE-06",
    text="recv gives None once closed, again and again; a close drops what was pending; closing twice is fine.",
    oracle="both kinds, closed with something pending",
    modes=SECOND,
    needs=("listen",),
    kills=("close-keeps-what-was-pending",),
)
async def a_close_drops_what_was_pending(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for kind, (opened, commit) in KINDS.items():
        name = ctx.name("news")
        receiver, control = await opened(mine, name), await opened(mine, name)
        for _ in range(3):
            await commit(other, name)
        await ctx.settle()
        await receiver.aclose()
        await receiver.aclose()
        for call, (receive, end) in _ends(receiver).items():
            for _ in range(3):
                found = await ctx.soon(receive(), f"{call} of {kind} that is closed returns at once")
                ctx.expect(found, end, f"{call} of {kind} that is closed gives nothing, again and again")
        found = await ctx.soon(control.recv(), "another receiver stays open")
        ctx.that(found is not None, "another receiver keeps what is pending", observed=found)
        await control.aclose()


@row(
    "WAKE-06",
    text="A close ends a recv that waits, and async for.",
    oracle="both kinds: a task in each call when the receiver is closed",
    modes=SECOND,
    needs=("listen",),
    kills=("close-leaves-a-waiter",),
)
async def a_close_ends_a_wait(ctx: Context) -> None:
    mine = ctx.store
    _ = await ctx.turn()

    async def iterate(receiver: Receiver) -> str:
        async for _ in receiver:
            pass
        return "ended"

    for kind, (opened, _commit) in KINDS.items():
        for at in range(3):
            receiver = await opened(mine, ctx.name("news"))
            calls: list[Call] = [*_ends(receiver).values(), (partial(iterate, receiver), "ended")]
            receive, end = calls[at % len(calls)]
            waiter = ctx.start(_awaited(receive))
            await ctx.idle(waiter, f"{kind} waits while nothing is committed")
            await receiver.aclose()
            ctx.expect(await ctx.soon(waiter, f"a close ends the wait of {kind}"), end, f"{kind} ends")


async def _awaited(call: Callable[[], Awaitable[Any]]) -> object:
    return await call()


@row(
    "WAKE-06",
    text="recv_timeout gives None at the timeout, a wake that is there at once, and Closed when closed.",
    oracle="short and zero timeouts while the clock stands still; a close before and during the wait",
    modes=SECOND,
    needs=("listen",),
    kills=("recv-timeout-swallows-close",),
)
async def recv_timeout_ends_by_itself(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    channel = ctx.name("news")
    receiver = await mine.listen(channel)
    for seconds in (0, -1, 0.0, 0.002):
        nothing = await ctx.soon(receiver.recv_timeout(seconds), "a timeout ends the wait")
        ctx.expect(nothing, None, "recv_timeout gives None at the timeout")
    await _a_short_timeout_is_waited_for(ctx, mine, other)
    await other.notify(channel)
    await ctx.settle()
    found = await ctx.soon(receiver.recv_timeout(60), "a wake that is there ends the wait")
    ctx.expect(found, Wake(channel), "recv_timeout gives the wake")
    waiter = ctx.start(receiver.recv_timeout(60))
    await ctx.idle(waiter, "recv_timeout waits for its timeout")
    await receiver.aclose()
    async with ctx.refuses(Closed, "a close during recv_timeout is Closed"):
        await ctx.soon(waiter, "a close ends the wait")
    async with ctx.refuses(Closed, "recv_timeout of a closed receiver is refused"):
        await ctx.soon(receiver.recv_timeout(60), "a closed receiver waits for nothing")


async def _a_short_timeout_is_waited_for(ctx: Context, mine: Store, other: Store) -> None:
    channel, clock = ctx.name("soon"), asyncio.get_running_loop().time
    async with mine.listen(channel) as receiver:
        began = clock()
        waiter = ctx.start(receiver.recv_timeout(0.9))
        for _ in range(3):
            await ctx.hold(0)
        await other.notify(channel)
        found = await ctx.soon(waiter, "a wake or the timeout ends the wait")
        is_slow = clock() - began > 0.9  # this machine: the timeout may have come first, as it should
        ctx.that(found or is_slow, "recv_timeout waits until its timeout, short as it is", observed=found)


@row(
    "WAKE-06",
    text="recv_page waits for at least one event, and gives what is there up to its limit.",
    oracle="a page that waits, then pages of 3 out of 7 events",
    modes=SECOND,
)
async def recv_page_waits_for_one_event(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    async with mine.stream(name).subscribe() as events:
        waiter = ctx.start(events.recv_page())
        await ctx.idle(waiter, "recv_page waits for at least one event")
        first = await other.stream(name).publish(0)
        page = await ctx.soon(waiter, "an event ends the wait for a page")
        ctx.expect([event.offset for event in page], [first], "a page holds what is there")
        rest = await other.stream(name).publish_batch(range(7))
        pages = [await ctx.soon(events.recv_page(3), "a page does not wait to be full") for _ in range(3)]
        found = [[event.offset for event in each] for each in pages]
        ctx.expect(found, [rest[:3], rest[3:6], rest[6:]], "pages are in order and end at the limit")


@row(
    "WAKE-06",
    text="A second task in recv of one receiver is InvalidArgument; the first goes on waiting.",
    oracle="both kinds: the refusal, and what the first task gets after it",
    modes=SECOND,
    needs=("listen",),
    kills=("two-tasks-receive",),
)
async def a_second_task_in_recv_is_refused(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for kind, (opened, commit) in KINDS.items():
        name = ctx.name("news")
        receiver = await opened(mine, name)
        waiter = ctx.start(receiver.recv())
        await ctx.idle(waiter, f"{kind} waits while nothing is committed")
        for call, (receive, _) in _ends(receiver).items():
            async with ctx.refuses(InvalidArgument, f"{call} of {kind} in a second task is refused"):
                await ctx.soon(receive(), f"{call} of {kind} in a second task does not wait")
        ctx.still_waiting(waiter, "the first task goes on waiting")
        await commit(other, name)
        found = await ctx.soon(waiter, "the first task gets what comes")
        ctx.that(found is not None, "the first task gets what comes", observed=found)
        await receiver.aclose()


@row(
    "WAKE-09",
    text="Cancelling a recv loses no wake and leaves the receiver usable.",
    oracle="a recv cancelled just before, with and just after its wake: the wake came, or is still there",
    modes=("plain", "concurrent", "second"),
    needs=("listen",),
    kills=("cancelled-recv-loses-a-wake",),
)
async def a_cancelled_recv_loses_no_wake(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    channel = ctx.name("news")
    async with mine.listen(channel) as receiver:
        for turns in [*range(6), *(ctx.random.randrange(12) for _ in range(14))]:
            waiter = ctx.start(receiver.recv())
            await ctx.idle(waiter, "without a notify recv waits")
            await other.notify(channel)
            for _ in range(turns):
                await ctx.hold(0)
            waiter.cancel()
            await asyncio.wait((waiter,))
            if waiter.cancelled():
                await woken(ctx, receiver, channel, "a wake that a cancelled recv did not give is kept")
            else:
                ctx.expect(waiter.result(), Wake(channel), "a recv that returned gave the wake")
            ctx.expect(await pending(ctx, receiver), 0, "a cancelled recv doubles no wake")


@row(
    "WAKE-09",
    text="Cancelling a recv or recv_page of events loses and doubles none.",
    oracle="200 events against recvs that are cancelled at random turns",
    modes=("concurrent", "second"),
    kills=("cancelled-recv-loses-an-event",),
)
async def a_cancelled_recv_loses_no_event(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    seen: list[int] = []
    sent: list[int] = []
    async with mine.stream(name).subscribe() as events:
        while len(sent) < 200:
            waiter = ctx.start(_one_page(events, ctx.random.choice((None, 1, 3))))
            turns = ctx.random.randrange(8)
            publish_at = ctx.random.randrange(turns + 1)
            for turn in range(turns + 1):
                if turn == publish_at:
                    sent += await other.stream(name).publish_batch(range(ctx.random.randrange(1, 6)))
                await ctx.hold(0)
            waiter.cancel()
            await asyncio.wait((waiter,))
            if not waiter.cancelled():
                seen += [event.offset for event in waiter.result()]
        while len(seen) < len(sent):
            seen.append((await received(ctx, events, "what a cancelled recv did not give is kept")).offset)
        ctx.expect(seen, sent, "cancelled recvs lose and double no event")
        ctx.expect(await events.try_recv(), None, "no event comes twice")


async def _one_page(events: EventReceiver, limit: int | None) -> list[StreamEvent]:
    if limit is not None:
        return await events.recv_page(limit)
    event = await events.recv()
    return [] if event is None else [event]
