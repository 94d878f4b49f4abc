"""What a store is between its opening and its close: one event loop, its waits, tasks and open transactions."""

import asyncio
import contextvars
import logging
import os
import random
import secrets
import socket
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import asynccontextmanager, suppress
from threading import get_ident
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar, cast

from alkstore import names, numbers
from alkstore.batching import Batcher, unanswered
from alkstore.claiming import ClaimPump
from alkstore.engine import Engine, EngineTransaction, Topic, Watch
from alkstore.errors import AlkstoreError, Closed, InsideTransaction, InvalidArgument, show
from alkstore.holding import Claims
from alkstore.home import Home
from alkstore.inside import Inside
from alkstore.observation import Observation, check_observers
from alkstore.observed import ObservedEngine, ObservedWriter, Writer, report_listener
from alkstore.observing import Observer
from alkstore.stamps import Duration
from alkstore.stop import StopToken
from alkstore.transaction import OUTSIDE
from alkstore.tx_life import TxLife

__all__ = ["Endable", "Life"]

LOGGER: Final = logging.getLogger("alkstore")
CLOSE_LIMIT: Final = 5.0
"""Seconds that `aclose` waits for what was handed to the storage (DUR-06)."""

LAST_CALL: Final = 1.0
"""Seconds that an engine has at least to let go of its connections, however much of the limit others have used up."""

POLL_JITTER: Final = 0.1
"""Part of ``poll_interval`` by which a poll comes earlier, so that those woken together do not poll together."""

T = TypeVar("T")


class Endable(Protocol):
    """A receiver: something that waits, and ends with the store."""

    def _end(self) -> None: ...


class Life:
    """Opens, checks where a call comes from, runs what outlives its caller, and closes."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Engine]],
        *,
        name: str,
        worker_id: str | None = None,
        wait_timeout: Duration = 30,
        poll_interval: Duration = 5,
        random: random.Random | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        """Prepare a store; engines call this, users call an engine's constructor or `alkstore.open`.

        Args:
            connect: Gives the connected engine.
            name: What messages call this store.
            worker_id: Who claims, for people to read; ``host:pid:4 hex`` by default.
            wait_timeout: Seconds that anything waits for a transaction or another process (TX-08).
            poll_interval: Seconds between looks when a wake was lost (Q-21).
            random: The source of jitter.
            observers: Who is told what happens (`alkstore.observing`).
        """
        self._worker_id = _worker_id() if worker_id is None else names.local(worker_id, "worker id")
        self._wait_timeout = _positive(wait_timeout, "wait_timeout")
        self._poll_interval = _positive(poll_interval, "poll_interval")
        self._random = _random(random)
        self._observation: Observation | None = None
        self._observe(observers)
        self._connect = connect
        self._label = name
        self._state = "new"
        self._claims_by_pump = False
        self._home: Home  # once it is opened
        self._transactions: weakref.WeakSet[TxLife] = weakref.WeakSet()
        self._open_transactions = 0
        self._tracked: weakref.WeakSet[Endable] = weakref.WeakSet()
        self._pumps: dict[str, ClaimPump] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._inside = Inside()
        self._watches: set[Watch] = set()
        self._ending = StopToken()
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._closing: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ life

    def __await__(self) -> Generator[object, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        if self._state != "new":
            again = "; make a new one" if self._state == "closed" else ": use it, and aclose() it in the end"
            raise InvalidArgument(f"store {self._label} was opened before{again}")
        self._state = "opening"
        self._home = Home()
        try:
            self._engine = await self._connect()
        except BaseException:
            if self._state == "opening":
                self._state = "new"
            raise
        if self._state == "closed":  # closed meanwhile: nobody else would close what has just been connected
            await self._shielded(self._finish(self._engine.aclose(), CLOSE_LIMIT))
            raise Closed("store")
        traits = self._engine.traits
        observation, claims = self._observation, Claims()
        if observation is not None:
            report_listener(self._engine, observation)
            self._engine = ObservedEngine(self._engine, observation, claims)
        self._batcher = Batcher(self._engine) if traits.batches else None
        self._writer: Writer = self._batcher or self._engine
        if observation is not None:
            self._writer = ObservedWriter(self._writer, observation, claims)
        self._claims_by_pump = traits.batches and not traits.gives_back
        self._state = "open"
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End every wait, let what was handed to the storage finish (5 s at most), and free everything.

        Closing twice, or from two tasks, is fine. Rows: DUR-06.
        """
        if self._state == "open":
            self._check_place()
            self._closing = asyncio.ensure_future(self._close())
        self._state = "closed"  # an opening under way sees it, and closes what it connected
        if self._closing is not None and not self._closing.done():
            self._check_place()
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + CLOSE_LIMIT
        try:
            self._end_waits()
            endings = [self._finish(tx._roll_back_early(), CLOSE_LIMIT) for tx in list(self._transactions)]
            await asyncio.gather(*endings)
            await self._drain(deadline)
            for tx in list(self._transactions):
                tx._cut_off()
            if self._batcher is not None:
                await self._batcher.close(max(deadline - clock(), 0.0))
        finally:
            await self._finish(self._engine.aclose(), max(deadline - clock(), LAST_CALL))

    def _end_waits(self) -> None:
        self._ending.cancel()
        for pump in list(self._pumps.values()):
            pump.close()
        for tracked in list(self._tracked):
            tracked._end()
        for watch in list(self._watches):
            watch.close()

    async def _drain(self, deadline: float) -> None:
        """Let finish what is in hand, and what that starts at its end: a claim that is given back, a lease."""
        clock = asyncio.get_running_loop().time
        while waits := {*self._tasks, *self._inside.left()}:
            if (left := deadline - clock()) <= 0:
                break
            await asyncio.wait(waits, timeout=left)
        hanging = set(self._tasks)
        for task in hanging:
            task.cancel()
        if hanging:
            await asyncio.wait(hanging, timeout=LAST_CALL)

    async def _finish(self, ending: Awaitable[None], limit: float) -> None:
        try:
            async with asyncio.timeout(limit):
                await ending
        except (AlkstoreError, TimeoutError) as error:
            LOGGER.warning("closing %s: %s", self._label, str(error) or f"not done in {limit:g} s")

    def __del__(self) -> None:
        if getattr(self, "_state", "new") in ("open", "opening"):
            warnings.warn(
                f"store {self._label} was never closed; use 'async with' or aclose()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._label} {self._state}>"

    # ------------------------------------------------------------ within core

    def _observe(self, observers: Iterable[Observer]) -> None:
        """Have further observers, while the store is not open yet."""
        given = check_observers(observers)
        if given:
            before = () if self._observation is None else self._observation.observers
            self._observation = Observation((*before, *given))

    def _check(self, operation: str, twin: str | None = None, *, write: bool) -> None:
        """Refuse a call that cannot be made here and now; after the arguments' checks, before any engine work."""
        if self._state != "open":
            if self._state in ("new", "opening"):
                raise InvalidArgument(f"store {self._label} is not open; use 'async with' or await it first")
            raise Closed("store")
        home = self._home
        if get_ident() != home.thread or not home.loop.is_running():
            self._check_place()
        if write and self._open_transactions:
            self._check_outside(operation, twin)

    def _check_place(self) -> None:
        if not self._home.is_here():
            raise InvalidArgument(
                f"store {self._label} belongs to the event loop that opened it; "
                "open another store in this loop, thread or process"
            )

    def _check_outside(self, operation: str, twin: str | None) -> None:
        task = asyncio.current_task()
        for tx in self._transactions:
            if tx._task is not task or not tx._is_open:
                continue
            if not OUTSIDE.get():
                raise InsideTransaction(operation, twin, tx._begun)
            if not self._engine.traits.outside_tx:
                raise InvalidArgument(
                    f"{operation} cannot land beside the open transaction begun at {tx._begun}: "
                    "this engine has one writer; end the transaction first"
                )

    def _pump(self, queue: str) -> ClaimPump:
        if self._state != "open":  # who has been delivering since before the close is not to claim once more
            raise Closed("store")
        pump = self._pumps.get(queue)
        if pump is None:
            # A pump that nobody waits on any more is forgotten: a million queue names leave nothing behind.
            pump = ClaimPump(
                queue, self._engine, self._writer, self._poll_after, self._start, self._forget_pump
            )
            self._pumps[queue] = pump
        return pump

    def _forget_pump(self, queue: str) -> None:
        self._pumps.pop(queue, None)

    def _poll_after(self) -> float:
        """Seconds until it is worth looking although nothing was heard (Q-21)."""
        if not self._engine.traits.batches:  # no I/O, so nobody to spread the polls for
            return self._poll_interval
        return self._poll_interval * (1 - POLL_JITTER * self._random.random())

    async def _watch(self, topic: Topic) -> Watch:
        return await self._obtain(self._engine.watch(topic), lambda watch: watch.close())

    @asynccontextmanager
    async def _watching(self, topic: Topic) -> AsyncIterator[Watch]:
        watch = await self._watch(topic)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)
            watch.close()

    def _track(self, receiver: Endable) -> None:
        self._tracked.add(receiver)

    def _untrack(self, receiver: Endable) -> None:
        self._tracked.discard(receiver)

    def _tx_begun(self, tx: TxLife) -> None:
        self._transactions.add(tx)
        self._open_transactions += 1

    def _tx_ended(self, tx: TxLife) -> None:
        self._transactions.discard(tx)
        self._open_transactions -= 1

    def _spawn(self, work: Coroutine[object, object, T]) -> "asyncio.Task[T]":
        """Run something that outlives its caller's cancellation; `aclose` waits for it."""
        task = asyncio.ensure_future(work)
        self._keep(task)
        return task

    def _start(self, work: Coroutine[object, object, object]) -> None:
        """Run something that nobody awaits but `aclose`."""
        # In a context of its own, or a pump would keep alive what the context of its first waiter holds.
        self._keep(asyncio.get_running_loop().create_task(work, context=contextvars.Context()))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever awaits it sees it; nobody awaiting must not be a warning at exit

    async def _shielded(self, work: Coroutine[object, object, T]) -> T:
        """Await something to its end even if the caller is cancelled again meanwhile."""
        task = self._spawn(work)
        await asyncio.wait((task,))  # a shield would pass off the task's own cancellation as the caller's
        if task.cancelled():
            raise unanswered()
        return task.result()

    async def _obtain(
        self, work: Coroutine[object, object, T], undo: Callable[[T], object], *, is_whole: bool = False
    ) -> T:
        """Await what has to be given back: if the caller is cancelled or the store closed meanwhile, it is.

        With ``is_whole`` it is a transaction, which the engine gives back by itself when its caller is cancelled.
        """
        if is_whole or self._engine.traits.gives_back:  # spared a task
            with self._inside:
                obtained = await work
                if self._state == "open":
                    return obtained
                try:
                    if is_whole:  # awaited: a joined connection is its owner's again once he is told
                        await self._finish(cast(EngineTransaction, obtained).rollback(), CLOSE_LIMIT)
                finally:
                    undo(obtained)
                raise Closed("store")
        task = self._spawn(work)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: _undo(done, undo))
            raise
        if self._state != "open":
            _undo(task, undo)
            raise Closed("store")
        return task.result()

    async def _rest(self, seconds: float, stop: StopToken) -> None:
        """Back off for so many seconds of the event loop's time; ``stop`` and the store's close end it."""
        woken = asyncio.Event()
        forget = [token.subscribe(woken.set) for token in (stop, self._ending)]
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await woken.wait()
        finally:
            for unsubscribe in forget:
                unsubscribe()

    async def _quietly(self, work: Coroutine[object, object, object]) -> None:
        """Await a clean-up to its end; its failure must not hide what is under way, so it is only logged."""
        try:
            await self._shielded(work)
        except Closed:
            pass  # what a closed store held is left to lapse (DUR-06)
        except AlkstoreError as error:
            LOGGER.warning("clean-up in %s failed: %s", self._label, error)


def _undo(done: "asyncio.Task[T]", undo: Callable[[T], object]) -> None:
    if not done.cancelled() and done.exception() is None:
        undo(done.result())


def _worker_id() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"


def _positive(value: Duration, what: str) -> float:
    return numbers.duration(value, what, positive=True) / 1_000_000


def _random(source: random.Random | None) -> random.Random:
    if source is None:
        return random.Random()
    if not isinstance(source, random.Random):
        raise InvalidArgument(f"random must be a random.Random, got {show(source)}")
    return source
