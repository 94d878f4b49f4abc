"""Stores beside a server that is made to fail, and what is to be seen of them afterwards."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
from every_operation import OPERATIONS, RUNNERS, Contents, Outside, Things, contents
from hanging import HUNG
from timed import extended

from alkstore import DatabaseError, LeadershipLost, Store
from alkstore_pg.store import PgStore

__all__ = [
    "PATIENCE",
    "Reference",
    "Trials",
    "backends",
    "begun",
    "everything_locked",
    "gone",
    "outside",
    "terminate",
    "trying",
    "until_waiting",
]

PATIENCE: Final = HUNG
"""Seconds after which something that is to end hangs."""

LONGER: Final = 2 * HUNG
"""Seconds that stores wait for a lock or a server by themselves: what is to end has hung before."""

ENOUGH: Final = 0.05
"""Seconds after which a runner is told to stop."""

_NUMBERS: Final = itertools.count(1)

_BACKENDS: Final = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'alkstore' AND backend_type = 'client backend'
"""


async def backends(outsider: Outside, where: str = "true") -> list[int]:
    """Give the stores' sessions of this database."""
    return [pid for (pid,) in await outsider.fetch(f"{_BACKENDS} AND {where}")]


async def terminate(outsider: Outside, pids: Sequence[int]) -> None:
    """Let the server end sessions, and wait until they have ended."""
    await outsider.execute("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", pids)
    await gone(outsider, pids)


async def gone(outsider: Outside, pids: Sequence[int]) -> None:
    async with asyncio.timeout(PATIENCE):
        while await backends(outsider, f"pid = ANY (ARRAY{list(pids)}::int[])"):  # noqa: ASYNC110  # not our process
            await asyncio.sleep(0.001)


async def until_waiting(outsider: Outside, running: "asyncio.Future[Any]", least: int = 1) -> list[int]:
    """Wait until so many sessions wait for a lock, or the operation has ended; gives the sessions."""
    async with asyncio.timeout(PATIENCE):
        while len(waiting := await backends(outsider, "wait_event_type = 'Lock'")) < least:
            if running.done():
                break
            await asyncio.sleep(0.001)
    return waiting


@asynccontextmanager
async def everything_locked(locker: Outside) -> AsyncIterator[None]:
    """Let nobody read or write any table of alkstore while the block runs."""
    tables = await locker.fetch(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'alkstore'"
    )
    async with locker.transaction():
        await locker.execute(f"LOCK TABLE {', '.join(row[0] for row in tables)}")
        yield


# ---------------------------------------------------------------- what an operation may leave


class Reference:
    """What an operation leaves where nothing fails: each state of its things from the first to the last."""

    def __init__(self, name: str, states: Sequence[Contents]) -> None:
        self.name = name
        self.states = states

    def judge(self, error: BaseException | None, left: Contents) -> str | None:
        """Say what is wrong with how it ended, and what it left, under a fault; None if nothing is."""
        states, is_runner = self.states, self.name in RUNNERS
        if left not in states:
            return f"left what none of its steps leaves: {[set(left) ^ set(state) for state in states]}"
        if error is None:
            # A runner is told to stop after a while, whatever it has done by then; a lock that a block could not free lapses.
            may_stop = is_runner or self.name == "Store.lock"
            return None if left == states[-1] or may_stop else f"ended well and left {left}"
        if isinstance(error, LeadershipLost):
            return None if is_runner else f"raised {error!r}"
        if not isinstance(error, DatabaseError) or error.__cause__ is None:
            return f"raised {error!r} from {error.__cause__!r}"
        # Of an operation of several commits any may have been the one that is told of, and whoever fires schedules fires
        # others' too.
        is_one = len(states) == 2 and not self.name.endswith("_schedules")
        if is_one and not error.outcome_unknown and left != states[0]:
            return f"landed, though {error!r} denies it"
        return None


class Trials:
    """Operations of one store, each on things of its own, and what is found wrong with them. Make it by `trying`.

    ``makes`` are those of a store that nothing happens to; None: this is that one.
    """

    def __init__(self, store: Store, outsider: Outside, dsn: str, makes: "Trials | None" = None) -> None:
        self.store = store
        self._makes = makes
        self.outsider = outsider
        self._dsn = dsn
        self._references: dict[str, Reference] = {}

    async def things(self, name: str, *, judged: bool = True) -> Things:
        """Make things for an operation."""
        if judged and self._makes is not None:
            _ = await self.reference(name)  # not while it runs: what fires schedules fires all that are due
        maker = self.store if self._makes is None else self._makes.store
        things = await Things.made(maker, self.store, f"{name} {next(_NUMBERS)}", self._dsn)
        if name.endswith("_schedules"):
            await things.once_due(self.outsider)
        return things

    async def reference(self, name: str) -> Reference:
        """Give what an operation leaves where nothing fails."""
        if self._makes is not None:
            return await self._makes.reference(name)
        if name not in self._references:
            things = await self.things(name)
            states = [await contents(self.outsider, things.name)]

            async def note() -> None:
                states.append(await contents(self.outsider, things.name))

            things.midway = note
            running = asyncio.ensure_future(OPERATIONS[name](things))
            if name.endswith("_schedules"):  # nothing in it tells us when it has fired
                async with asyncio.timeout(PATIENCE):
                    while await contents(self.outsider, things.name) == states[0]:  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
                things.stop.cancel()
            await running
            await note()
            self._references[name] = Reference(name, states)
        return self._references[name]

    async def end_of(self, name: str, things: Things, running: "asyncio.Future[Any]") -> str | None:
        """Wait for an operation's end; gives what is wrong with it."""
        reference = await self.reference(name)
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.wait((running,))
        except TimeoutError:
            return "hangs"
        finally:
            running.cancel()
        error = running.exception()
        problem = reference.judge(error, await contents(self.outsider, things.name))
        return problem and f"{name}: {problem}"

    async def none_is_unknown(self, names: Collection[str]) -> dict[str, BaseException | None]:
        """Begin operations at once, of which each happens or fails for sure; gives how they ended."""
        things = {name: await self.things(name) for name in names}
        running = {name: begun(name, each) for name, each in things.items()}
        problems = [await self.end_of(name, things[name], one) for name, one in running.items()]
        assert [problem for problem in problems if problem is not None] == []
        errors = {name: one.exception() for name, one in running.items()}
        assert [name for name, error in errors.items() if getattr(error, "outcome_unknown", False)] == []
        return errors

    async def all_happen(self) -> None:
        """Run every operation, one after the other."""
        for name in OPERATIONS:
            things = await self.things(name)
            running = begun(name, things)
            assert await self.end_of(name, things, running) is None
            assert running.exception() is None, name


@asynccontextmanager
async def outside(dsn: str) -> AsyncIterator[Outside]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def trying(place: str, through: str | None = None, **options: Any) -> AsyncIterator[Trials]:
    """Give trials of a store in a database, which it reaches through another DSN perhaps."""
    dsn = through or place
    async with (
        PgStore(extended(place, "application_name=maker")) as maker,
        PgStore(dsn, **{"wait_timeout": LONGER, **options}) as store,
        outside(place) as outsider,
    ):
        yield Trials(store, outsider, dsn, Trials(maker, outsider, place))


def begun(name: str, things: Things) -> "asyncio.Future[Any]":
    """Begin an operation; a runner is told to stop after a while."""
    if name in RUNNERS:
        asyncio.get_running_loop().call_later(ENOUGH, things.stop.cancel)
    return asyncio.ensure_future(OPERATIONS[name](things))
