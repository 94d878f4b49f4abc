"""An engine at the end of a bad wire, and an event loop whose time jumps over every wait."""

import asyncio
import functools
import inspect
import selectors
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, cast

from alkstore import Store
from alkstore.engine import Engine, Signal, Topic, Traits, Watch
from alkstore.errors import DatabaseError
from alkstore.testing import ManualClock, seeded
from alkstore_mem.engine import MemEngine

P = ParamSpec("P")


class Wire:
    """What befalls the calls of an engine; a transaction's are named ``tx.commit`` and so on.

    A call waits at its gate before the work or after it, fails before the work (once, with a fault of the engine's own,
    where it is ``breaking``) or loses its answer after it. Every
    call takes ``turns`` of the loop each way. Where it ``persists``, as in a thread, what was sent is done although
    its caller was cancelled; elsewhere only if that came after the work.
    """

    def __init__(self, turns: int = 0) -> None:
        self.turns = turns
        self.persists = False
        self.before: dict[str, asyncio.Event] = {}
        self.after: dict[str, asyncio.Event] = {}
        self.refusing: Counter[str] = Counter()
        self.losing: Counter[str] = Counter()
        self.breaking: dict[str, Exception] = {}
        self.calls: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.is_deaf = False

    async def carry(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        if not self.persists:
            return await self._carry(name, work)
        call = asyncio.ensure_future(self._carry(name, work))
        call.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(call)

    async def _carry(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        self.calls[name] += 1
        await self._pass(self.before.get(name))
        if name in self.breaking:
            raise self.breaking.pop(name)
        if self.refusing[name] > 0:
            self.refusing[name] -= 1
            raise DatabaseError(f"{name} failed")
        result = await work()
        self.done[name] += 1
        await self._pass(self.after.get(name))
        if self.losing[name] > 0:
            self.losing[name] -= 1
            error = DatabaseError(f"the answer of {name} was lost")
            error.outcome_unknown = True
            raise error
        return result

    async def _pass(self, gate: asyncio.Event | None) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if gate is not None:
            await gate.wait()

    def hang(self, name: str) -> asyncio.Event:
        """Hold the calls of this name up before their work; gives the gate."""
        return self.before.setdefault(name, asyncio.Event())

    def hang_answers(self, name: str) -> asyncio.Event:
        """Hold the answers of this name up; gives the gate."""
        return self.after.setdefault(name, asyncio.Event())


class _Wired:
    """Whatever it wraps, reached over the wire."""

    def __init__(self, inner: Any, wire: Wire, prefix: str = "") -> None:
        self._inner = inner
        self._wire = wire
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return self._wire.carry(self._prefix + name, lambda: found(*args, **kwargs))

        return call


class WiredEngine(_Wired):
    """A mem engine at the end of a wire."""

    def __init__(self, clock: ManualClock, wire: Wire) -> None:
        super().__init__(MemEngine(clock), wire)
        self.traits = Traits(batches=True)

    async def begin(self, connection: object | None = None, begun: str = "") -> Any:
        inner = await self._wire.carry("begin", lambda: self._inner.begin(None, begun))
        return _Wired(inner, self._wire, "tx.")

    async def watch(self, topic: Topic) -> Watch:
        watch: Watch = await self._wire.carry("watch", lambda: self._inner.watch(topic))
        return _DeafWatch(watch) if self._wire.is_deaf else watch


class _DeafWatch:
    """Hears of the end alone: every wake is lost."""

    def __init__(self, inner: Watch) -> None:
        self._inner = inner

    def poll(self) -> Signal | None:
        signal = self._inner.poll()
        return signal if signal is Signal.CLOSED else None

    async def wait(self, until: int | None = None) -> Signal:
        while (signal := await self._inner.wait(until)) is Signal.WOKEN:
            pass
        return signal

    def close(self) -> None:
        self._inner.close()


class FaultyStore(Store):
    """A store whose engine is at the end of a wire."""

    def __init__(self, *, turns: int = 0, poll_interval: float = 5) -> None:
        super().__init__(self._connected, name="faulty://", random=seeded(), poll_interval=poll_interval)
        self.clock = self._clock = ManualClock()  # the second is where engines that may be given one have it
        self.wire = Wire(turns)
        self.mem = WiredEngine(self.clock, self.wire)

    async def _connected(self) -> Engine:
        return cast(Engine, self.mem)  # a proxy, complete by what it wraps

    @property
    def open_watches(self) -> list[Topic]:
        return list(self.mem._inner._state.hub.topics())

    @property
    def open_transactions(self) -> int:
        return len(self.mem._inner._state.open)


# ---------------------------------------------------------------- time


BEGIN = 1_000.0
"""What a warped loop's time begins with: a machine's is never 0 either."""

TURN = 1e-6
"""Seconds that a turn of a warped loop takes: without them, who looks again in every turn would never see a timer ring."""


class WarpLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer when nothing else is to be done, and is no machine's."""

    def __init__(self) -> None:
        self.now = BEGIN
        super().__init__(_WarpSelector(self))

    def time(self) -> float:
        return self.now


class _WarpSelector(selectors.SelectSelector):
    def __init__(self, loop: WarpLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0 if timeout is not None else 5)
        if timeout is None and not found:
            raise RuntimeError("every task waits for another, and nothing will ever happen")
        self._loop.now += TURN
        if timeout is not None and not found:
            self._loop.now += max(timeout, 0)
        return found


def warped(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Run a test in a loop of its own whose time jumps; it leaves no task behind, and no error that nobody saw."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        unseen: list[dict[str, Any]] = []
        left: set[asyncio.Task[Any]] = set()

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
            await test(*args, **kwargs)
            left.update(task for task in asyncio.all_tasks() if task is not asyncio.current_task())

        with asyncio.Runner(loop_factory=WarpLoop) as runner:
            runner.run(watched())
        assert not left, f"tasks left: {left}"
        assert not unseen, f"errors that nobody saw: {unseen}"

    return run


async def turn(times: int = 30) -> None:
    """Let everybody come to rest who waits for nothing but a turn of the loop."""
    for _ in range(times):
        await asyncio.sleep(0)
