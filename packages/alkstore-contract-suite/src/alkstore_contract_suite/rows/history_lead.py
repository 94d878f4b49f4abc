"""Row SCHED-09 by a history: leadership was with one runner at a time, across stops, kills and lapses."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final, Protocol

from alkstore import LeadershipLost, StopToken, Store
from alkstore_contract_suite.child import hear
from alkstore_contract_suite.children import Child
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.histories import objects
from alkstore_contract_suite.histories.call import Call
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._history import lapse, linear_or_not
from alkstore_contract_suite.rows._schedule import LEASE, Runner, lease

ROUNDS: Final = 12
MOST_ROUNDS: Final = 36
"""Rounds are drawn, and now and then a dozen of them hardly hands the leadership on."""
CONTENDERS: Final = 4
LOOKS: Final = 300
"""Looks of a whole contest at who leads: where two lead, or nobody comes to, there is nothing to wait for."""


class Contender(Protocol):
    """Somebody who can run the schedules, again and again."""

    name: str

    def begin(self) -> "asyncio.Task[None]":
        """Run them; the task ends when that ends."""

    def stop(self) -> None:
        """Tell who runs them to stop."""


class _Local:
    def __init__(self, ctx: Context, store: Store, name: str) -> None:
        self.name = name
        self._ctx = ctx
        self._store = store

    def begin(self) -> "asyncio.Task[None]":
        self._runner = Runner(self._ctx, self._store)
        return self._runner.task

    def stop(self) -> None:
        self._runner.stop.cancel()


class _Remote:
    def __init__(self, child: Child) -> None:
        self.name = child.name
        self.child = child

    def begin(self) -> "asyncio.Task[None]":
        return self.child.start(_lead)

    def stop(self) -> None:
        self.child.tell("stop")


async def _lead(store: Store) -> None:
    """Run the schedules in a child until it is told to stop."""
    stop = StopToken()

    async def listen() -> None:
        await hear()
        stop.cancel()

    listening = asyncio.create_task(listen())
    try:
        await store.run_schedules(stop)
    finally:
        listening.cancel()
        await asyncio.wait([listening])


class _Contest:
    """The rounds of a contest, and every call in them."""

    def __init__(self, ctx: Context, contenders: Sequence[Contender]) -> None:
        self.calls: list[Call] = []
        self._ctx = ctx
        self._contenders = [*contenders]
        self._leading: dict[str, tuple[Contender, asyncio.Task[None]]] = {}
        self._looks = LOOKS

    @property
    def leaders(self) -> int:
        """How often somebody came to lead."""
        return sum(call.answer is True for call in self.calls)

    async def round(self) -> None:
        """Let some begin while those who lead may end, until everybody has come to rest."""
        ctx, before, begun = self._ctx, await self._fence(), time.monotonic_ns()
        idle = [each for each in self._contenders if each.name not in self._leading]
        ending = [name for name in self._leading if ctx.random.random() < 0.6]
        # Before the others or after them: both are races that a leader's end and a begin may run.
        stops_first = ctx.random.random() < 0.5
        if stops_first:
            self._stop(ending)
        new = [(each, each.begin()) for each in ctx.random.sample(idle, min(2, len(idle)))]
        if not stops_first:
            self._stop(ending)
        await ctx.settle()
        for name in ending:
            _, task = self._leading.pop(name)
            await ctx.soon(task, "a stop ends the runner")
            self._note(name, "resign", None, begun)
        await self._decided([task for _, task in new], before)
        for each, task in new:
            await self._see(each, task, begun)

    async def _decided(self, new: "Sequence[asyncio.Task[None]]", before: int) -> None:
        """Wait until all who began were refused, or all but one, who leads.

        On a busy machine who is to be refused may not have heard of it when everybody seems to have come to rest.
        """
        while self._looks:
            going = sum(not task.done() for task in new)
            if going == 0 or (going == 1 and not self._leading and await self._fence() > before):
                return
            self._looks -= 1
            await self._ctx.hold(0.003)

    async def _fence(self) -> int:
        held = await lease(self._ctx.store)
        return 0 if held is None else held.fence

    def _stop(self, names: Sequence[str]) -> None:
        for name in names:
            self._leading[name][0].stop()

    async def _see(self, each: Contender, task: "asyncio.Task[None]", begun: int) -> None:
        self._note(each.name, "lead", not task.done(), begun)
        if not task.done():
            self._leading[each.name] = each, task
            return
        async with self._ctx.refuses(LeadershipLost, "a runner that does not lead is refused"):
            await task

    def _note(self, name: str, do: str, answer: object, begun: int) -> None:
        self.calls.append(Call(name, do, name, answer, begun, time.monotonic_ns()))

    async def kill_a_leader(self) -> None:
        """Kill who leads, let another one be refused, and let the lease lapse."""
        if not self._leading:
            return
        contender, _ = self._leading.popitem()[1]
        assert isinstance(contender, _Remote)
        await contender.child.kill()
        self._contenders.remove(contender)
        await self.round()
        self.calls.append(await lapse(self._ctx, LEASE))

    async def finish(self) -> None:
        """Let everybody stop."""
        self._stop([*self._leading])
        for _, task in self._leading.values():
            await self._ctx.soon(task, "a stop ends the runner")


@row(
    "SCHED-09",
    text="Leadership is given to one runner at a time, by a stop or a lapse of the one before.",
    oracle="a search for an order of all begins and ends of four runners, two of whom are killed where they are processes",
    modes=("concurrent", "second", "process"),
    kills=("clean-stop-keeps-the-lease",),
)
async def leadership_can_have_been_given_to_one_at_a_time(ctx: Context) -> None:
    if ctx.mode == "process":
        contest = _Contest(ctx, [_Remote(child) for child in await ctx.processes(CONTENDERS)])
    else:
        stores = [ctx.store, await ctx.turn()]
        contest = _Contest(ctx, [_Local(ctx, stores[at % 2], f"t{at}") for at in range(CONTENDERS)])
    for number in range(MOST_ROUNDS):
        if number >= ROUNDS and contest.leaders >= CONTENDERS:
            break
        await contest.round()
        if ctx.mode == "process" and number in (4, 8):
            await contest.kill_a_leader()
    await contest.finish()
    promise = "leadership can have been given to one runner at a time"
    linear_or_not(ctx, contest.calls, objects.NOBODY, objects.leading, promise)
    if contest.leaders < CONTENDERS:
        ctx.skip_inconclusive("leadership hardly changed hands")
