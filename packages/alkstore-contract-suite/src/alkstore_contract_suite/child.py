"""What runs in a child process: a store on the case's storage, and the functions that the case sends.

A function that is to run in a child is an async function at the top level of a module; it gets the child's store and
what the case gave with it. With `tell` it can report while it runs, so that what it said is known even if it is killed
the moment after.
"""

import asyncio
import faulthandler
import functools
import gc
import os
import pickle
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Final, TextIO

from alkstore import Store
from alkstore_contract_suite.factory import Remote, StoreFactory
from alkstore_contract_suite.failure import missing, shown
from alkstore_contract_suite.frames import framed, read_frame

__all__ = ["hear", "hold", "serve", "tell"]

LONGEST_HOLD: Final = 0.003
"""Seconds of real time that a stress may hold something open."""

LINGER: Final = 0.2
"""Seconds of real time in which a thread that has nothing more to do must have ended."""

LAST_TURNS: Final = 3
"""Turns of the loop in which tasks that the close ended may finish."""


def tell(value: object) -> None:
    """Report a value to the case; it reaches `Child.hear` even if this process is killed next.

    Raises:
        RuntimeError: This is no child process.
    """
    _here().send("told", 0, value)


async def hear() -> Any:
    """Wait for the next value that the case tells with `Child.tell`.

    Raises:
        RuntimeError: This is no child process.
    """
    return await _here().told.get()


async def hold(seconds: float) -> None:
    """Let real time pass, at most 3 ms, as `Context.hold` does."""
    if not 0 <= seconds <= LONGEST_HOLD:
        raise ValueError(f"a hold must be between 0 and {LONGEST_HOLD} s, got {seconds!r}")
    await asyncio.sleep(seconds)


def serve(channel: int, recipe: bytes) -> None:
    """Do what comes over the channel until it ends."""
    faulthandler.enable(sys.__stderr__ or sys.stderr)
    with (
        socket.socket(fileno=channel) as connection,
        asyncio.Runner(debug=False, loop_factory=asyncio.new_event_loop) as runner,
    ):
        serving = _Serving(connection, recipe)
        runner.run(serving.run())
    if serving.is_closed:
        # All that an interpreter's end would still free is what the fork server has, and to free that it would copy it: that
        # takes eight times as long as the fork and everything else. One that leaves without a close has that end.
        sys.stderr.flush()
        os._exit(0)


def _here() -> "_Serving":
    if _Serving.here is None:
        raise RuntimeError("tell() and hear() join a child process to its case; this process is no child")
    return _Serving.here


class _Serving:
    """The child's side of the channel."""

    here: "_Serving | None" = None

    def __init__(self, connection: socket.socket, recipe: bytes) -> None:
        self._connection = connection
        self._recipe = recipe
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ended = asyncio.Event()
        self.is_closed = False
        self.told: asyncio.Queue[Any] = asyncio.Queue()

    async def run(self) -> None:
        _Serving.here = self
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self._leak(context))
        warnings.simplefilter("always", ResourceWarning)
        warnings.showwarning = self._warned
        reader, self._writer = await asyncio.open_unix_connection(sock=self._connection)
        listening = asyncio.create_task(self._listen(reader))
        await self._ended.wait()
        listening.cancel()
        self._writer.close()
        await self._writer.wait_closed()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while (message := await read_frame(reader)) is not None:
            word, number, body = message
            if word == "cancel":
                if body in self._tasks:
                    self._tasks[body].cancel()
                continue
            if word == "tell":
                self.told.put_nowait(pickle.loads(body))
                continue
            work = asyncio.create_task(self._answer(number, getattr(self, f"_do_{word}"), body))
            self._tasks[number] = work
            work.add_done_callback(functools.partial(self._forget, number))
        # The case is gone: no close, no last words, and no waiting for what the loop or a thread still does.
        os._exit(1)

    def _forget(self, number: int, work: "asyncio.Task[None]") -> None:
        del self._tasks[number]

    async def _answer(self, number: int, do: Callable[..., Coroutine[Any, Any, object]], body: bytes) -> None:
        try:
            self.send("result", number, await do(*pickle.loads(body)))
        except (
            BaseException
        ) as error:  # a function's own error, a cancellation, whatever it is: the case is to see it
            self._send_error(number, error)

    def send(self, word: str, number: int, value: object) -> None:
        """Hand a message to the system; it arrives even if this process ends now."""
        self._writer.write(framed((word, number, value)))

    def _send_error(self, number: int, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        if name := missing(error):
            error = NotImplementedError(name)  # neither causes nor tracebacks survive a pickle
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)
        except Exception:  # an error that does not survive its pickle is told by its text
            pickled = b""
        self.send("error", number, (pickled, text))

    def _leak(self, context: dict[str, Any]) -> None:
        self.send("leak", 0, f"{context.get('message')}: {shown(context.get('exception'))}")

    def _warned(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        is_leak = issubclass(category, ResourceWarning) or "was never awaited" in str(message)
        # A process that ends without a close leaves everything, as it was told to.
        if is_leak and not self._ended.is_set():
            self.send("leak", 0, f"{category.__name__}: {message}")

    # ---------------------------------------------------------------- what the case may ask for

    async def _do_open(self, process: str, now: datetime, options: dict[str, Any]) -> None:
        recipe: Remote = pickle.loads(self._recipe)
        self._factory: StoreFactory = recipe(process)
        await self._do_look(now)
        opened = self._factory.open_with(**options) if options else self._factory.open(process)
        self._store: Store = await opened

    async def _do_look(self, now: datetime) -> None:
        await self._factory.advance((now - await self._factory.now()).total_seconds())

    async def _do_settle(self) -> None:
        await self._factory.settle()

    async def _do_run(
        self,
        function: Callable[..., Coroutine[Any, Any, object]],
        args: tuple[Any, ...],
        named: dict[str, Any],
    ) -> tuple[object, int, int]:
        begun = time.monotonic_ns()
        result = await function(self._store, *args, **named)
        return result, begun, time.monotonic_ns()

    async def _do_stop(self) -> None:
        me = asyncio.current_task()
        others = [task for task in self._tasks.values() if task is not me]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)
        await self._store.aclose()
        del self._store, self._factory
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
        gc.collect()
        for thread in threading.enumerate()[1:]:
            # One that has answered for the last time may still be on its way out.
            thread.join(LINGER)
        left = [task for task in asyncio.all_tasks() if task is not me and not self._is_ours(task)]
        for text in [*map(repr, left), *map(repr, threading.enumerate()[1:])]:
            self.send("leak", 0, f"still there after the close: {text}")
        self.is_closed = True
        self._ended.set()

    async def _do_leave(self) -> None:
        self._ended.set()

    def _is_ours(self, task: "asyncio.Task[Any]") -> bool:
        name = getattr(task.get_coro(), "__qualname__", "")
        return name.startswith(_Serving.__name__)
