"""Connections that do as they are told, and a listener on them: no server, no network."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from hanging import HUNG

from alkstore_pg.listener import Listener
from alkstore_pg.session import Row, Schema

__all__ = ["PATIENCE", "Line", "Server"]

PATIENCE = 5.0

Callback = Callable[..., object]


class Line:
    """A connection that answers, until it is told not to."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, tuple[Any, ...]]] = []
        self.is_deaf = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.busy = asyncio.Event()
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners: list[Callback] = []
        self._endings: list[Callback] = []

    async def fetch(self, statement: str, *parameters: Any) -> Sequence[Row]:
        self.sent.append((statement, parameters))
        await self._answer()
        if "pg_notify" in statement and not self.is_deaf:
            for text in parameters[0]:
                self.deliver(text)
        return []

    async def _answer(self) -> None:
        self.busy.set()
        answer = asyncio.ensure_future(self.answers.wait())
        try:
            await asyncio.wait((answer, self._end), return_when=asyncio.FIRST_COMPLETED)
        finally:
            answer.cancel()
        if self._end.done():
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    def deliver(self, text: str) -> None:
        for callback in self._listeners:
            asyncio.get_running_loop().call_soon(callback, self, 1, "alkstore", text)

    async def add_listener(self, channel: str, callback: Callback) -> None:
        assert channel == "alkstore"
        self.sent.append(("LISTEN", ()))
        await self._answer()
        self._listeners.append(callback)

    def add_termination_listener(self, callback: Callback) -> None:
        self._endings.append(callback)

    def is_closed(self) -> bool:
        return self._end.done()

    def terminate(self) -> None:
        if not self._end.done():
            self._end.set_result(None)
            for callback in self._endings:
                asyncio.get_running_loop().call_soon(callback, self)


class Server:
    """Where a listener connects, and what it is given as its surroundings."""

    def __init__(self, *, wait_timeout: float = PATIENCE, probe_interval: float = 3_600.0) -> None:
        self.schema = Schema("alkstore")
        self.listen = True
        self.probe_interval = probe_interval
        self.wait_timeout = wait_timeout
        self.random = random.Random(1)
        self.error: Exception | None = None
        self.lines: list[Line] = []
        self.dials: list[float] = []
        self.dialled = asyncio.Event()
        self.prepare: Callable[[Line], None] = lambda line: None
        self.heard: list[str] = []
        self.reports: list[str | None] = []
        self.reconnected = 0
        self.woken = asyncio.Event()
        self.tell: Callable[[str], Awaitable[object]] = self._tell

    async def dial_listener(self) -> Any:
        self.dials.append(asyncio.get_running_loop().time())
        self.dialled.set()
        if self.error is not None:
            raise self.error
        line = Line()
        self.prepare(line)
        self.lines.append(line)
        return line

    async def _tell(self, text: str) -> None:
        line = self.lines[-1]
        if not line.is_deaf:
            line.deliver(text)

    def note(self) -> None:
        self.reconnected += 1
        self.woken.set()

    @asynccontextmanager
    async def listener(self) -> AsyncIterator[Listener]:
        it = Listener(
            self, tell=self.tell, heard=self.heard.append, reconnected=self.note, report=self.reports.append
        )
        try:
            async with asyncio.timeout(HUNG):
                yield it
        finally:
            await it.aclose()
            assert asyncio.all_tasks() == {asyncio.current_task()}
