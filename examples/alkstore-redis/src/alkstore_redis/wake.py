"""Wakes: one connection a store, on which the server tells of every commit and of which nobody but this file knows."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from alkstore.engine import NewWake, Topic, TopicKind, Watch
from alkstore.watch import Hub
from alkstore_redis.state import DRIVER, Area, State

__all__ = ["Listener", "Wakes"]

PAUSES: Final = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Seconds before the first, second, … attempt to connect again; the last for all after it. Times 0.5 to 1.5."""


class Listener:
    """Subscribes, hears, and connects again for ever."""

    def __init__(self, state: State, hub: Hub, probe_interval: float) -> None:
        self._state = state
        self._hub = hub
        self._probe_interval = probe_interval
        self._connection: Any = None
        self._asked: dict[bytes, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self.heard = 0

    async def open(self) -> None:
        """Begin to listen; returns once the server knows.

        Raises:
            RedisError, OSError: The driver's.
        """
        self._task = asyncio.create_task(self._go_on(await self._subscribe()))

    async def hear(self) -> None:
        """Return when everything that was committed before has been heard; at once while there is no connection.

        Commands are answered in order, and what was published before one comes before its answer.
        """
        if self._connection is not None:
            token = b"%d" % next(self._state.numbers)
            answer = self._asked[token] = asyncio.get_running_loop().create_future()
            with suppress(*DRIVER):  # it ends with the connection, and the next one wakes everybody
                await self._connection.send_command("PING", token)
                await answer

    async def aclose(self) -> None:
        while self._task is not None and not self._task.done():
            self._task.cancel()  # again and again: wait_for, which the driver uses, may swallow one before Python 3.12
            await asyncio.wait((self._task,), timeout=0.1)

    async def _subscribe(self) -> Any:
        connection = self._state.connection()
        channels = (f"{self._state.prefix}wake", f"{self._state.prefix}store:{self._state.id}")
        try:
            async with asyncio.timeout(self._state.patience):
                await connection.connect()
                await connection.send_command("SUBSCRIBE", *channels)
                for _ in channels:
                    await connection.read_response()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _go_on(self, connection: Any) -> None:
        while True:
            self._connection = connection
            try:
                with suppress(*DRIVER):
                    await self._read(connection)
            finally:
                self._connection = None
                await connection.disconnect(nowait=True)
                for answer in self._asked.values():
                    if not answer.done():
                        answer.set_result(None)
                self._asked.clear()
            connection = await self._connect_again()
            self._hub.reconnected()

    async def _connect_again(self) -> Any:
        tries = 0
        while True:
            await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)] * (0.5 + self._state.random.random()))
            tries += 1
            with suppress(*DRIVER):
                return await self._subscribe()

    async def _read(self, connection: Any) -> None:
        is_asked = False
        while True:
            told = await connection.read_response(timeout=self._probe_interval, disconnect_on_error=False)
            if told is not None:
                is_asked = False
                self._note(told)
            elif is_asked:  # half open: the network is gone, and nobody said so
                return
            else:
                is_asked = True
                await connection.send_command("PING", "probe")

    def _note(self, told: Sequence[Any]) -> None:
        if told[0] == b"pong":
            answer = self._asked.pop(told[1], None)
            if answer is not None and not answer.done():
                answer.set_result(None)
        elif told[0] == b"message":
            self.heard += 1
            kind, _, name = told[2].decode().partition(":")
            self._hub.wake(Topic(TopicKind(kind), name))


class Wakes(Area):
    """Everything about wakes."""

    _hub: Hub
    _listener: Listener

    async def notify(self, wakes: Sequence[NewWake]) -> None:
        await self._state.run("notify", [(wake.channel, (wake.payload or b"").decode()) for wake in wakes])

    async def watch(self, topic: Topic) -> Watch:
        await self._listener.hear()  # or what was committed before would wake it too
        return self._hub.watch(topic)
