"""The listener: one connection on which a server tells of commits, and what is to be done when it is lost.

State model. A line is *up*, or is being made again: at growing intervals with jitter, for ever. While it is up, everything
it tells is woken in the hub. A line is told of commits and answers questions in one order, so whoever gets an answer has
heard of every commit before the question. Silence is met with a question of the listener's own; silence after that
means a dead network, and the line is given up. Once another line is up every watch hears that wakes may have been lost.
"""

import asyncio
import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from alkstore.engine import Topic
from alkstore.watch import Hub

__all__ = ["PAUSES", "Line", "Listener"]

PAUSES: Final = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Seconds before the first, second, … attempt to connect again; the last for all after it. Times 0.5 to 1.5."""


class Line(Protocol):
    """A connection that listens. What it raises are the driver's errors, and then it is lost."""

    async def open(self) -> None:
        """Get it up: of every commit from then on it will tell."""

    async def read(self, seconds: float) -> Topic | str | None:
        """Wait for what comes next: a topic to wake, the text of a question that was answered, or None after so much
        silence. Cancelled, it may lose what was coming.
        """

    async def ask(self, question: str) -> None:
        """Send a question; `read` gives its text back when it was answered."""

    async def aclose(self) -> None:
        """Let go, from any state. Waits for nobody."""


class Listener:
    """Hears, and connects again for ever.

    Args:
        make_line: Gives a line that is not up yet.
        hub: Whose topics it wakes.
        errors: What the driver raises when a line is lost, or cannot be had.
        patience: Seconds that a line may take to get up.
        probe_interval: Seconds of silence after which a line is asked whether it is still there.
        source: Of the jitter.

    Attributes:
        line: The line that is up, if there is one at the moment.
        heard: Topics that it has told of so far.
    """

    def __init__(
        self,
        make_line: Callable[[], Line],
        hub: Hub,
        errors: tuple[type[Exception], ...],
        patience: float,
        probe_interval: float,
        source: random.Random,
    ) -> None:
        self.line: Line | None = None
        self.heard = 0
        self._make_line = make_line
        self._hub = hub
        self._errors: tuple[type[Exception], ...] = (*errors, TimeoutError)
        self._patience = patience
        self._probe_interval = probe_interval
        self._random = source
        self._numbers = itertools.count(1)
        self._asked: dict[str, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to listen; returns once a line is up. Raises the driver's errors, or TimeoutError."""
        self._task = asyncio.create_task(self._go_on(await self._begin()))

    async def hear(self) -> None:
        """Return when everything that was committed before has been heard; at once while no line is up.

        Cost: one round trip.
        """
        if self.line is not None:
            question = str(next(self._numbers))
            answer = self._asked[question] = asyncio.get_running_loop().create_future()
            with suppress(*self._errors):  # it ends with the line, and the next one wakes everybody
                await self.line.ask(question)
                await answer

    async def aclose(self) -> None:
        """Stop listening. The hub's watches are left to whoever has it."""
        while self._task is not None and not self._task.done():
            # Again and again: asyncio.wait_for, which drivers use, may swallow a cancellation before Python 3.12.
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=0.1)

    async def _go_on(self, line: Line) -> None:
        while True:
            self.line = line
            try:
                with suppress(*self._errors):
                    await self._read(line)
            finally:
                self.line = None
                await line.aclose()
                for question in list(self._asked):
                    self._answered(question)
            line = await self._connect_again()
            self._hub.reconnected()

    async def _begin(self) -> Line:
        line = self._make_line()
        try:
            async with asyncio.timeout(self._patience):
                await line.open()
        except BaseException:
            await line.aclose()
            raise
        return line

    async def _connect_again(self) -> Line:
        for tries in itertools.count():
            await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)] * (0.5 + self._random.random()))
            with suppress(*self._errors):
                return await self._begin()
        raise AssertionError("it tries for ever")

    async def _read(self, line: Line) -> None:
        is_asked = False
        while True:
            told = await line.read(self._probe_interval)
            if isinstance(told, Topic):
                self.heard += 1
                self._hub.wake(told)
            elif told is not None:
                self._answered(told)
            elif is_asked:  # half open: the network is gone, and nobody said so
                return
            else:
                await line.ask("")
            is_asked = told is None

    def _answered(self, question: str) -> None:
        answer = self._asked.pop(question, None)
        if answer is not None and not answer.done():
            answer.set_result(None)
