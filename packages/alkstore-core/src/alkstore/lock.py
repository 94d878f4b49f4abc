"""Named locks: a lease with a fence, taken at once or waited for."""

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from alkstore import numbers
from alkstore.engine import Signal, Taken, Topic, TopicKind
from alkstore.errors import (
    AlkstoreError,
    Closed,
    HandleConsumed,
    InvalidArgument,
    LockLost,
    LockTimeout,
    show,
)
from alkstore.pausing import Pause
from alkstore.renewal import Renewal
from alkstore.stamps import Duration

if TYPE_CHECKING:
    from alkstore.store import Store

__all__ = ["Lock", "LockContext", "take"]

LOGGER: Final = logging.getLogger("alkstore")
FREE: Final = 0
"""The ttl that ends a lease."""


class Lock:
    """One acquisition of a named lock. ``async with lock:`` releases it at the end; it does not renew.

    A handle that is dropped keeps the lock until its ttl runs out; one from ``await store.lock(…)`` warns of that.
    Rows: LOCK-01 to LOCK-07.
    """

    __slots__ = (
        "_expires_at",
        "_fence",
        "_is_held",
        "_is_owed",
        "_is_released",
        "_name",
        "_renewal",
        "_store",
    )

    def __init__(self, store: "Store", name: str, fence: int, expires_at: int) -> None:
        self._store = store
        self._name = name
        self._fence = fence
        self._expires_at = expires_at
        self._is_held = True
        self._is_owed = False
        self._is_released = False
        self._renewal: Renewal | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def fence(self) -> int:
        """Greater than that of every earlier holder of this name: hand it to what the lock guards."""
        return self._fence

    @property
    def held(self) -> bool:
        """What this handle knows: False once it released, or learnt that it had lost it. It asks nobody."""
        return self._is_held

    def __del__(self) -> None:
        if getattr(self, "_is_owed", False) and self._is_held and self._store._state == "open":
            warnings.warn(
                f"{self!r} was never released and keeps others out until its ttl; use 'async with' or release()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def __repr__(self) -> str:
        return f"Lock({self._name!r}, fence={self._fence}, held={self._is_held})"

    async def renew(self, ttl: Duration) -> bool:
        """Hold it for a whole new ``ttl`` seconds from now.

        Returns:
            False if it had lapsed or was taken: nothing changed, and it is not revived.

        Raises:
            InvalidArgument: ``ttl`` is not positive.
            HandleConsumed: It was released before.

        Cost: one round trip. Rows: LOCK-02, LOCK-03.
        """
        window = numbers.duration(ttl, "ttl", positive=True)
        self._check("Lock.renew")
        return await self._renew(window) is not None

    async def release(self) -> bool:
        """Free it at once; False if it had lapsed or was taken before, and nothing changed.

        Raises:
            HandleConsumed: It was released before.

        Cost: one round trip. Rows: LOCK-04.
        """
        self._check("Lock.release")
        return await self._free()

    def _check(self, operation: str) -> None:
        self._store._check(operation, None, write=True)
        if self._is_released:
            raise HandleConsumed("lock", "released")

    async def _renew(self, ttl: int) -> int | None:
        end = await self._store._engine.renew_lock(self._name, self._fence, ttl)
        if end is None:
            self._is_held = False
        else:
            before, self._expires_at = self._expires_at, end
            if end < before and self._renewal is not None:
                self._renewal.note_sooner()
        return end

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_released:
            return
        try:
            # Checked in this task: a child's would not be taken for the transaction's own.
            self._check("Lock.release")
            await self._store._shielded(self._free())
        except AlkstoreError as error:
            if exc is None:
                raise
            # The body's own end is the first error: a release that fails after it must not take its place.
            LOGGER.warning("lock %s was left to lapse: %s", show(self._name), error)

    async def _free(self) -> bool:
        self._is_released = True
        try:
            freed = await self._store._engine.renew_lock(self._name, self._fence, FREE)
        except BaseException:
            self._is_released = False  # nobody answered: calling it again is safe
            raise
        self._is_held = False
        return freed is not None


def take(store: "Store", name: str, ttl: int) -> Awaitable[Taken]:
    """Try once; a caller that is cancelled meanwhile gives back what it may have got."""

    def give_back(taken: Taken) -> None:
        if taken.fence is not None:
            store._start(store._engine.renew_lock(name, taken.fence, FREE))

    return store._obtain(store._engine.take_lock(name, ttl), give_back)


class LockContext:
    """``async with store.lock(…) as lock`` waits, renews while the block runs, and releases.

    ``lock = await store.lock(…)`` waits and acquires; it renews nothing and cancels nobody. Rows: LOCK-06.
    """

    __slots__ = ("_is_used", "_lock", "_name", "_renewal", "_store", "_timeout", "_ttl")

    def __init__(self, store: "Store", name: str, ttl: int, timeout: float | None) -> None:
        self._store = store
        self._name = name
        self._ttl = ttl
        self._timeout = timeout
        self._is_used = False
        self._lock: Lock | None = None
        self._renewal: Renewal | None = None

    def __await__(self) -> Generator[object, None, Lock]:
        return self._acquire_for_caller().__await__()

    async def _acquire_for_caller(self) -> Lock:
        lock = await self._acquire()
        lock._is_owed = True  # no block ends it
        return lock

    async def __aenter__(self) -> Lock:
        lock = self._lock = await self._acquire()
        self._renewal = lock._renewal = Renewal(
            self._store,
            renew=lambda: lock._renew(self._ttl),
            end=lambda: lock._expires_at,
            window=self._ttl,
            lost=lambda: LockLost(self._name),
            is_over=lambda: lock._is_released,
        )
        try:
            await self._renewal.__aenter__()
        except BaseException:
            await self._free(lock)  # nobody holds the block's end in his hands, so nobody else would
            raise
        return lock

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lock, renewal = self._lock, self._renewal
        if lock is None or renewal is None:
            return
        try:
            await renewal.__aexit__(exc_type, exc, traceback)
        finally:
            await self._free(lock)

    async def _free(self, lock: Lock) -> None:
        if not lock._is_released:
            lock._is_released = True
            lock._is_held = False
            await self._store._quietly(self._store._engine.renew_lock(lock._name, lock._fence, FREE))

    async def _acquire(self) -> Lock:
        # Before anything is awaited: entered by two tasks, the first block would free what the second one holds.
        if self._is_used:
            raise InvalidArgument("a lock context is entered or awaited once; call store.lock again")
        store, limit = self._store, self._timeout
        store._check("Store.lock", None, write=True)
        self._is_used = True
        if limit is not None and limit <= 0:
            return self._taken(await take(store, self._name, self._ttl))
        # One of a store's waiters tries and the others stand in line behind it: a release would wake them all, for one.
        turn = store._turns.setdefault(self._name, asyncio.Lock())
        try:
            # The tries are under the limit too: a storage that hangs is no reason to wait longer.
            async with asyncio.timeout(limit), turn:
                store._check("Store.lock", None, write=True)  # closed meanwhile, perhaps
                return await self._take_in_turn()
        except TimeoutError:
            raise LockTimeout(self._name, limit or 0.0) from None

    def _taken(self, taken: Taken) -> Lock:
        if taken.fence is None:
            raise LockTimeout(self._name, self._timeout or 0.0)
        return Lock(self._store, self._name, taken.fence, taken.expires_at)

    async def _take_in_turn(self) -> Lock:
        store = self._store
        async with store._watching(Topic(TopicKind.LOCK, self._name)) as watch:
            while True:
                taken = await take(store, self._name, self._ttl)
                if taken.fence is not None:
                    return self._taken(taken)
                pause = store._poll_after()
                if await Pause().wait(watch, until=taken.expires_at, timeout=pause) is Signal.CLOSED:
                    raise Closed("store")
