"""Steps that the rows about histories share: workers that note what they call, in tasks or in processes."""

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

from alkstore import Store
from alkstore_contract_suite.child import hold, tell
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.failure import NotRaced
from alkstore_contract_suite.histories import linear
from alkstore_contract_suite.histories.call import Call, Note, Noted, calls
from alkstore_contract_suite.racing import LEAST_OVERLAP, overlapping

Work: TypeAlias = Callable[[Store, Note, random.Random, str, str], Awaitable[None]]
"""What a worker does with its store: it notes, draws, works on the name, and knows its own."""

MODES: Final = ("concurrent", "process")
WORKERS: Final = 3

HEARD: Final = (6, 24)
"""Notes, at least and below, after which a worker is killed; one who never gets the lock tells of no more."""


async def in_child(store: Store, work: Work, seed: str, name: str, me: str) -> None:
    """Let a child process work; what it notes it tells."""
    await work(store, tell, random.Random(seed), name, me)


async def pause(draw: random.Random) -> None:
    """Let the others come to something, too."""
    await hold(draw.choice((0, 0, draw.uniform(0, 0.0005))))


async def history(ctx: Context, work: Work, name: str) -> list[Call]:
    """Let several work at the same time, one of them to its death where there are processes; gives all their calls."""
    if ctx.mode == "process":
        noted = await _processes(ctx, work, name)
    else:
        noted = await _tasks(ctx, work, name)
    found = [call for process, notes in noted.items() for call in calls(process, notes)]
    overlapped(ctx, found)
    return sorted(found, key=lambda call: call.begun)


async def _tasks(ctx: Context, work: Work, name: str) -> dict[str, list[Noted]]:
    noted: dict[str, list[Noted]] = {f"t{number}": [] for number in range(WORKERS)}
    # Drawn here: the tasks' turns would draw in another order each time.
    seeds = [ctx.random.random() for _ in noted]
    await ctx.race(
        *(
            _run(work, ctx.store, notes.append, random.Random(seed), name, me)
            for (me, notes), seed in zip(noted.items(), seeds, strict=True)
        )
    )
    return noted


async def _run(work: Work, store: Store, note: Note, draw: random.Random, name: str, me: str) -> None:
    await work(store, note, draw, name, me)


async def _processes(ctx: Context, work: Work, name: str) -> dict[str, list[Noted]]:
    *workers, victim = await ctx.processes(WORKERS + 1)
    _ = victim.start(in_child, work, f"{ctx.random.random()}", name, victim.name)
    least = ctx.random.randrange(*HEARD)

    async def kill() -> list[Noted]:
        heard = [await victim.hear() for _ in range(least)]
        await victim.kill()
        return heard

    seeds = [f"{ctx.random.random()}" for _ in workers]
    race: list[Any] = await ctx.race(
        kill(),
        *(
            worker.run(in_child, work, seed, name, worker.name)
            for worker, seed in zip(workers, seeds, strict=True)
        ),
    )
    noted = {worker.name: worker.heard() for worker in workers}
    return {**noted, victim.name: [*race[0], *victim.heard()]}


async def lapse(ctx: Context, seconds: float) -> Call:
    """Move time until what anybody holds has ended; gives the call that stands for it."""
    begun = time.monotonic_ns()
    await ctx.advance(seconds)
    return Call("time", "lapse", None, None, begun, time.monotonic_ns())


def overlapped(ctx: Context, found: Sequence[Call]) -> None:
    """Demand that the workers really worked at the same time."""
    names = sorted({call.process for call in found})
    order = [names.index(call.process) for call in sorted(found, key=lambda call: call.begun)]
    count = overlapping(order)
    ctx.note(f"{len(found)} calls of {len(names)} workers, {count} of them overlapped")
    if count < LEAST_OVERLAP:
        raise NotRaced(f"{count} of {len(names)} workers overlapped another one")


def adds_up(ctx: Context, faults: Sequence[str], promise: str) -> None:
    """Demand that a checker found nothing."""
    ctx.expect(list(faults[:5]), [], promise)


def linear_or_not(ctx: Context, found: Sequence[Call], begin: Any, steps: linear.Steps, promise: str) -> None:
    """Demand an order in which the calls can have happened one at a time; no time to find it says nothing."""
    try:
        failed = linear.check(found, begin, steps)
    except linear.TooLong as error:
        ctx.skip_inconclusive(f"no order of the calls was found in time: {error}")
    if failed is not None:
        stuck = [(call.process, call.do, call.given, call.answer) for call in failed.stuck]
        ctx.fail(
            promise,
            f"one of the answers of {stuck!r}",
            f"none fits after {len(failed.done)} calls: {failed.state!r}",
        )
    ctx.note(f"kept: {promise}")
