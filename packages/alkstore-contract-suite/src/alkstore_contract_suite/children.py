"""The child processes of one case: each has a store of its own on the case's storage, and the case's time."""

import asyncio
import os
import pickle
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from alkstore import Store
from alkstore_contract_suite.factory import StoreFactory
from alkstore_contract_suite.fork_server import NUMBER
from alkstore_contract_suite.frames import framed, read_frame
from alkstore_contract_suite.processes import LIMIT, Forked, ProcessDied, Processes
from alkstore_contract_suite.racing import worked

__all__ = ["Child", "ChildError", "Children", "Killed"]

P = ParamSpec("P")
T = TypeVar("T")

TAIL: Final = 2_000
"""Bytes of a dead child's stderr that a report shows."""

ROUNDS: Final = 2
"""How often all processes settle together: what one does on another's news is news to a third."""


class ChildError(Exception):
    """An error of a child process that could not be pickled; the text is its traceback."""


class Killed(Exception):
    """The case ended this child process while it was still to do something."""


class Children:
    """The child processes of a case.

    Args:
        processes: The run's fork server.
        factory: The case's own.
        start: Runs a coroutine in the background of the case.
        died: Told when a child ends without having been told to.
    """

    def __init__(
        self,
        processes: Processes,
        factory: StoreFactory,
        start: Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"],
        died: Callable[[ProcessDied], None],
    ) -> None:
        self._processes = processes
        self._factory = factory
        self._all: list[Child] = []
        self.start = start
        self.died = died

    async def fork(self, count: int, options: dict[str, Any]) -> "list[Child]":
        """Fork so many, then let all of them open their stores at once."""
        remote = self._factory.remote()
        if remote is None:
            raise RuntimeError(
                "the factory has no recipe for another process; such rows need 'multi_process'"
            )
        new = []
        for _ in range(count):
            child = Child(self, self._processes, f"p{len(self._all) + 1}", self._processes.fork(remote))
            self._all.append(child)
            new.append(child)
        await asyncio.gather(*(child.begin() for child in new))
        now = await self.now()
        await asyncio.gather(*(child.open(now, options) for child in new))
        if await self.now() != now:
            # Time moved while they opened, and they were not told.
            await self.look()
        return new

    async def now(self) -> datetime:
        """Give the case's now."""
        return await self._factory.now()

    async def look(self) -> None:
        """Tell every child what time it is; returns when all of them, and the case's own stores, have come to rest."""
        if self._live:
            now = await self.now()
            await asyncio.gather(*(child.look(now) for child in self._live))
            await self.settle()

    async def settle(self) -> None:
        """Return when what can be delivered to anybody has been; the case's own stores have settled before."""
        for _ in range(ROUNDS if self._live else 0):
            await asyncio.gather(*(child.settle() for child in self._live), self._factory.settle())

    async def finish(self) -> list[str]:
        """End all that still live; gives what any of them left behind."""
        for child in self._all:
            await child.free()
        return [text for child in self._all for text in child.leaks]

    @property
    def _live(self) -> "list[Child]":
        return [child for child in self._all if child.is_going]


class Child:
    """A process with a store of its own on the case's storage.

    Attributes:
        name: "p1", "p2", …, in the order of their begin.
        pid: The process id.
        status: How it ended: an exit code, or minus the number of the signal; None while it lives.
        leaks: What it met in the background, or left behind at its close.
    """

    def __init__(self, children: Children, processes: Processes, name: str, forked: Forked) -> None:
        self.name = name
        self.pid = 0
        self.status: int | None = None
        self.leaks: list[str] = []
        self._children = children
        self._processes = processes
        self._forked = forked
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._told: asyncio.Queue[Any] = asyncio.Queue()
        self._listening: asyncio.Task[None] | None = None
        self._is_open = False
        self._is_paused = False
        self._is_to_end = False
        self._numbers = 0

    # ---------------------------------------------------------------- what rows use

    async def run(
        self, function: Callable[Concatenate[Store, P], Awaitable[T]], *args: P.args, **named: P.kwargs
    ) -> T:
        """Run an async function of a module's top level in the process, with its store and what is given.

        Gives what the function gives, and raises what it raises; a cancellation is passed on.

        Raises:
            Killed: The case ended the process meanwhile.
            ProcessDied: It ended by itself.
        """
        result: T
        result, begun, ended = await self._ask("run", function, args, named)
        worked(begun, ended)
        return result

    def start(
        self, function: Callable[Concatenate[Store, P], Awaitable[T]], *args: P.args, **named: P.kwargs
    ) -> "asyncio.Task[T]":
        """Run such a function in the background of the case; a task that is cancelled if the process is killed."""

        async def run() -> T:
            try:
                return await self.run(function, *args, **named)
            except Killed:
                raise asyncio.CancelledError from None

        return self._children.start(run())

    def tell(self, value: object) -> None:
        """Give a value to whoever awaits `child.hear` in the process."""
        self._writer.write(framed(("tell", 0, pickle.dumps(value))))

    async def hear(self) -> Any:
        """Wait for the next value that the process tells."""
        return await self._told.get()

    @property
    def unheard(self) -> int:
        """How much of what it has told nobody has heard yet."""
        return self._told.qsize()

    def heard(self) -> list[Any]:
        """Give everything that it has told and nobody has heard yet; after its end that is all there ever was."""
        return [self._told.get_nowait() for _ in range(self._told.qsize())]

    async def kill(self) -> None:
        """End it by SIGKILL, and return when it has ended; what it was still to do is cancelled."""
        self._is_to_end = True
        if self.status is None:
            self._processes.signal(self.pid, signal.SIGKILL)
        await self._end()

    async def stop(self) -> None:
        """Close its store, and let it end; what it was still to do is cancelled."""
        await self._ask_to_end("stop")

    async def leave(self) -> None:
        """Let it end without closing anything, as a program does that just returns."""
        await self._ask_to_end("leave")

    def pause(self) -> None:
        """Let it stand still: nothing of it goes on, nor does its clock."""
        self._is_paused = True
        self._processes.signal(self.pid, signal.SIGSTOP)

    async def go_on(self) -> None:
        """Let it go on, on the case's time."""
        self._processes.signal(self.pid, signal.SIGCONT)
        self._is_paused = False
        await self.look(await self._children.now())

    # ---------------------------------------------------------------- what the case does with all of them

    @property
    def is_going(self) -> bool:
        """Whether it can be asked for anything."""
        return self._is_open and not (self._is_paused or self._is_to_end or self.status is not None)

    async def begin(self) -> None:
        """Wait until the process is there."""
        async with self._limited("begin"):
            self.pid = await self._number()
            reader, self._receiving = await asyncio.open_unix_connection(sock=self._forked.channel)
            # Apart: a write to a process that has been killed ends what it is written to, and what the process had told
            # before may still have to be read.
            _, self._writer = await asyncio.open_unix_connection(sock=self._forked.channel.dup())
            assert isinstance(self._writer.transport, asyncio.Transport)
            self._writer.transport.pause_reading()
        self._listening = asyncio.create_task(self._listen(reader))

    async def open(self, now: datetime, options: dict[str, Any]) -> None:
        """Open its store, its clock standing at ``now``."""
        async with self._limited("open its store"):
            await self._ask("open", self.name, now, options)
        self._is_open = True

    async def look(self, now: datetime) -> None:
        """Set its clock, and return when its store has looked at its waits."""
        with suppress(Killed):
            async with self._limited("look at its clock"):
                await self._ask("look", now)

    async def settle(self) -> None:
        """Return when everything that can be delivered to it has been."""
        with suppress(Killed):
            async with self._limited("settle"):
                await self._ask("settle")

    async def free(self) -> None:
        """End it if it still lives, and give back what belongs to it."""
        if self._forked.stderr.closed:
            return
        try:
            if self._listening is not None:
                self._is_to_end = True
                self._processes.signal(self.pid, signal.SIGKILL)
                async with self._limited("end"):
                    await self._listening
                for writer in (self._writer, self._receiving):
                    writer.close()
                    with suppress(OSError):  # the end of a process that was killed
                        await writer.wait_closed()
        finally:
            self._forked.channel.close()
            self._forked.stderr.close()
            os.close(self._forked.report)

    # ---------------------------------------------------------------- the channel

    async def _ask(self, word: str, *body: Any) -> Any:
        if self.status is not None:
            raise self._death()
        self._numbers += 1
        number = self._numbers
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(framed((word, number, pickle.dumps(body))))
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            self._writer.write(framed(("cancel", 0, number)))
            raise
        finally:
            del self._asked[number]
            answer.cancel()

    async def _ask_to_end(self, word: str) -> None:
        self._is_to_end = True
        async with self._limited(word):
            await self._ask(word)
        await self._end()

    async def _end(self) -> None:
        assert self._listening is not None
        async with self._limited("end"):
            await asyncio.shield(self._listening)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while (message := await read_frame(reader)) is not None:
            word, number, value = message
            if word == "told":
                self._told.put_nowait(value)
            elif word == "leak":
                self.leaks.append(f"process {self.name}: {value}")
            elif number in self._asked:
                self._take(self._asked[number], word, value)
        try:
            self.status = os.waitstatus_to_exitcode(await self._number())
        except ProcessDied:
            # The server went away, and killed its children with its last breath.
            self.status = -signal.SIGKILL
        death = self._death()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(death)
        if isinstance(death, ProcessDied):
            self._children.died(death)

    def _take(self, answer: "asyncio.Future[Any]", word: str, value: Any) -> None:
        if word == "result":
            answer.set_result(value)
            return
        pickled, text = value
        error = pickle.loads(pickled) if pickled else ChildError(text)
        if isinstance(error, asyncio.CancelledError):
            answer.cancel()
        else:
            error.add_note(f"in process {self.name}:\n{text}")
            answer.set_exception(error)

    async def _number(self) -> int:
        """Read what the fork server reports: the process id, and the wait status when it has ended."""
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_reader(self._forked.report, ready.cancel)
        try:
            await asyncio.wait([ready])
        finally:
            loop.remove_reader(self._forked.report)
        told = os.read(self._forked.report, NUMBER.size)
        if not told:
            raise ProcessDied("the fork server of this run has ended")
        number: int = NUMBER.unpack(told)[0]
        return number

    @asynccontextmanager
    async def _limited(self, what: str) -> AsyncIterator[None]:
        limit = asyncio.timeout(LIMIT)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise ProcessDied(
                f"process {self.name} did not {what} within {LIMIT:g} s{self._last_words()}"
            ) from None

    def _death(self) -> ProcessDied | Killed:
        if self._is_to_end:
            return Killed(f"process {self.name} was ended by the case before it answered")
        return ProcessDied(
            f"process {self.name} ended by itself with status {self.status}{self._last_words()}"
        )

    def _last_words(self) -> str:
        descriptor = self._forked.stderr.fileno()
        size = os.fstat(descriptor).st_size
        text = os.pread(descriptor, TAIL, max(size - TAIL, 0)).decode("utf-8", "replace").strip()
        return f"; it said: {text}" if text else ""
