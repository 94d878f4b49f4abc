"""Stores that close, cancel or forget wrongly, each in exactly one way."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from mutant import Patch, mutant

from alkstore import Closed, JobHandle, Tx, WakeReceiver, lock
from alkstore.beginning import TxContext
from alkstore.claiming import ClaimPump, Want
from alkstore.clock import Clock
from alkstore.engine import Ack, Settle, Taken
from alkstore.life import Life
from alkstore.watch import Hub
from alkstore_mem.engine import MemEngine
from alkstore_mem.hold import Holds, Position
from alkstore_mem.state import State


@mutant("two-stores-share-their-memory", kills="DUR-01")
class TwoStoresShareTheirMemory(MemEngine):
    _engines: ClassVar["WeakKeyDictionary[Clock, TwoStoresShareTheirMemory]"] = WeakKeyDictionary()

    def __new__(cls, clock: Clock, **options: Any) -> "TwoStoresShareTheirMemory":
        return cls._engines.setdefault(clock, super().__new__(cls))

    def __init__(self, clock: Clock, *, wait_timeout: float = 30.0) -> None:
        if not hasattr(self, "_state"):
            super().__init__(clock, wait_timeout=wait_timeout)


# ---------------------------------------------------------------- the close


@mutant("closed-store-still-writes", kills="DUR-06")
def closed_store_still_writes(patch: Patch) -> None:
    original = Life._check

    def lax(store: Life, operation: str, twin: str | None = None, *, write: bool) -> None:
        if store._state != "closed":
            original(store, operation, twin, write=write)

    patch.attribute(Life, "_check", lax)
    patch.attribute(State, "enter", lambda state: state.reap())


@mutant("closed-store-still-runs", kills="DUR-06")
def closed_store_still_runs(patch: Patch) -> None:
    original = Life._check

    def lax(store: Life, operation: str, twin: str | None = None, *, write: bool) -> None:
        if store._state != "closed" or not operation.endswith(("run", "_schedules")):
            original(store, operation, twin, write=write)

    patch.attribute(Life, "_check", lax)


@mutant("close-leaves-claims-waiting", kills="DUR-06")
def close_leaves_claims_waiting(patch: Patch) -> None:
    patch.attribute(ClaimPump, "close", lambda pump: setattr(pump, "_is_closed", True))
    patch.attribute(ClaimPump, "_fail", lambda pump, error: None)


@mutant("close-leaves-receivers-waiting", kills="DUR-06")
def close_leaves_receivers_waiting(patch: Patch) -> None:
    patch.attribute(WakeReceiver, "_end", lambda receiver: None)
    patch.attribute(Hub, "aclose", lambda hub: None)


@mutant("second-close-fails", kills="DUR-06")
def second_close_fails(patch: Patch) -> None:
    original = Life.aclose

    async def once(store: Life) -> None:
        if store._state == "closed":
            raise Closed("store")
        await original(store)

    patch.attribute(Life, "aclose", once)


@mutant("close-leaves-a-task", kills="DUR-06")
def close_leaves_a_task(patch: Patch) -> None:
    original = Life._close
    left: set[asyncio.Task[None]] = set()

    async def untidy(store: Life) -> None:
        left.add(asyncio.create_task(asyncio.sleep(60)))
        await original(store)

    patch.attribute(Life, "_close", untidy)


@mutant("any-loop-will-do", kills="DUR-07")
def any_loop_will_do(patch: Patch) -> None:
    patch.attribute(Life, "_check_place", lambda store: None)


@mutant("heartbeat-answers-true-always", kills="DUR-11")
def heartbeat_answers_true_always(patch: Patch) -> None:
    original = JobHandle.heartbeat

    async def hopeful(handle: JobHandle, window: Any = None) -> bool:
        await original(handle, window)
        return True

    patch.attribute(JobHandle, "heartbeat", hopeful)


@mutant("waiting-blocks-the-loop", kills="DUR-12")
def waiting_blocks_the_loop(patch: Patch) -> None:
    original = Holds._wait

    async def busy(holds: Holds, position: Position, holder: Any) -> None:
        waiting = asyncio.ensure_future(original(holds, position, holder))
        while not waiting.done():
            time.sleep(0.005)  # noqa: ASYNC251  # a driver that is called in the loop's own thread
            await asyncio.sleep(0)
        await waiting

    patch.attribute(Holds, "_wait", busy)


# ---------------------------------------------------------------- what is left behind


@mutant("cancelled-lock-wait-keeps-the-lock", kills="DUR-08")
def cancelled_lock_wait_keeps_the_lock(patch: Patch) -> None:
    async def careless(store: Any, name: str, ttl: int) -> Taken:
        taken: Taken = await store._engine.take_lock(name, ttl)
        await asyncio.sleep(0)
        return taken

    patch.attribute(lock, "take", careless)


@mutant("cancelled-block-keeps-its-claim", kills="DUR-08")
def cancelled_block_keeps_its_claim(patch: Patch) -> None:
    original = JobHandle.__aexit__

    async def careless(handle: JobHandle, exc_type: Any, exc: Any, traceback: Any) -> None:
        if exc_type is not asyncio.CancelledError:
            await original(handle, exc_type, exc, traceback)

    patch.attribute(JobHandle, "__aexit__", careless)


@mutant("cancelled-tx-keeps-the-position", kills="DUR-08")
def cancelled_tx_keeps_the_position(patch: Patch) -> None:
    original = TxContext.__aexit__
    leaked: list[Tx | None] = []
    patch._undo.callback(leaked.clear)

    async def careless(context: TxContext[Tx], exc_type: Any, exc: Any, traceback: Any) -> None:
        if exc_type is asyncio.CancelledError:
            leaked.append(context._tx)
            return
        await original(context, exc_type, exc, traceback)

    patch.attribute(TxContext, "__aexit__", careless)


@mutant("receivers-are-never-forgotten", kills="DUR-08")
def receivers_are_never_forgotten(patch: Patch) -> None:
    patch.attribute(Hub, "drop", lambda hub, watch: None)


@mutant("waiting-claims-are-never-forgotten", kills="DUR-08")
def waiting_claims_are_never_forgotten(patch: Patch) -> None:
    original = Want.__init__
    kept: list[Want] = []
    patch._undo.callback(kept.clear)

    def remembered(want: Want, worker_id: str, count: int, *, waits: bool) -> None:
        original(want, worker_id, count, waits=waits)
        kept.append(want)

    patch.attribute(Want, "__init__", remembered)


@mutant("freed-locks-are-kept", kills="DUR-13")
class FreedLocksAreKept(MemEngine):
    def __init__(self, clock: Clock, *, wait_timeout: float = 30.0) -> None:
        super().__init__(clock, wait_timeout=wait_timeout)
        self._kept: list[list[object]] = []

    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        if ttl == 0:
            self._kept.append([name, fence])
        return await super().renew_lock(name, fence, ttl)


@mutant("acked-jobs-are-kept", kills="DUR-13")
class AckedJobsAreKept(MemEngine):
    def __init__(self, clock: Clock, *, wait_timeout: float = 30.0) -> None:
        super().__init__(clock, wait_timeout=wait_timeout)
        self._kept: list[list[object]] = []

    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        self._kept.extend([settle] for settle in settles if isinstance(settle, Ack))
        return await super().settle_jobs(settles)
