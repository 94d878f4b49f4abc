"""What the areas of one store share: the script, numbers as it takes them, the server's clock, and the driver's errors."""

import asyncio
import hashlib
import itertools
import math
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from importlib.resources import files
from typing import Any, Final

import msgspec
from redis.asyncio import ConnectionPool, Redis
from redis.exceptions import AuthenticationError, BusyLoadingError, NoScriptError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from alkstore.clock import SteppedTimer, Timer
from alkstore.errors import Closed, DatabaseError

__all__ = [
    "DRIVER",
    "MOST",
    "Area",
    "ServerClock",
    "State",
    "found",
    "number",
    "optional",
    "text",
    "translated",
]

AREAS: Final = ("wake", "queue", "stream", "lock", "schedule", "transaction", "engine")
DRIVER: Final = (RedisError, OSError)
"""Everything that redis-py raises."""
UNKNOWN: Final = (RedisConnectionError, RedisTimeoutError, OSError)
REFUSED: Final = (AuthenticationError, BusyLoadingError)
"""Of them those that say that nothing was executed."""
LEAST_PATIENCE: Final = 1.0
"""Seconds that the server has for its answer, however short ``wait_timeout``, the limit of waiting for others, is."""
ASK_AGAIN: Final = 0.01
"""Seconds after which to look whether a position is still held: nobody tells, for a process that died could not."""
BIAS: Final = 2**63
MOST: Final = 2**31
"""Rows that may be asked for at once: a count beyond it would mean all, and Redis takes no greater ones."""
SECOND: Final = 1_000_000


def text(number: int) -> str:
    """Give a number of 64 bits as the script compares and adds it: 20 digits that sort."""
    return f"{number + BIAS:020d}"


def number(text: str) -> int:
    """Read what `text` gave."""
    return int(text) - BIAS


def optional(value: int | None) -> str | bool:
    """As `text`; False for None, which in Lua would be a hole among the arguments."""
    return False if value is None else text(value)


def found(text: str | bool) -> int | None:
    """Read what `optional` gave."""
    return number(text) if isinstance(text, str) else None


class ServerClock:
    """The server's clock as its answers tell it: never ahead of it, and behind by no more than an answer takes."""

    lua = "local time = call('TIME')\nlocal now = text(time[1] * 1000000 + time[2])\n"
    """How a script finds the instant of its operation."""

    def __init__(self) -> None:
        self._offset: int | None = None

    def heard(self, now: int, sent: float) -> None:
        """Learn from an answer that says ``now``, to what was sent when the loop's clock said ``sent``."""
        offset = now - math.ceil(asyncio.get_running_loop().time() * SECOND)
        was_set_back = self._offset is not None and sent * SECOND + self._offset > now
        self._offset = offset if self._offset is None or was_set_back else max(offset, self._offset)

    def now(self) -> int:
        return math.floor(asyncio.get_running_loop().time() * SECOND) + (self._offset or 0)

    def call_at(self, instant: int, callback: Callable[[], object]) -> Timer:
        return SteppedTimer(self, instant, callback)


class State:
    """Runs operations on the server, each one script: atomic, and one round trip.

    Attributes:
        id: This store on the server: its transactions last while it is subscribed to a channel of that name.
        in_hand: Operations that were not answered yet.
        done: How many were.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        prefix: str,
        clock: ServerClock,
        wait_timeout: float,
        source: random.Random,
    ) -> None:
        self.id: Final = secrets.token_hex(8)
        self.prefix: Final = prefix
        self.clock: Final = clock
        self.wait_timeout: Final = wait_timeout
        self.patience: Final = max(wait_timeout, LEAST_PATIENCE)
        self.random: Final = source
        self.numbers: Final = itertools.count(1)
        self.is_closed = False
        self.in_hand = self.done = 0
        self._pool = pool
        self._redis: Any = Redis(connection_pool=pool)  # the driver's types leave out what it gives
        self._slots = asyncio.Semaphore(pool.max_connections)
        folder = files("alkstore_redis") / "lua"
        parts = [(folder / f"{area}.lua").read_bytes() for area in ("state", *AREAS)]
        self._script = b"".join([parts[0], clock.lua.encode(), *parts[1:]])
        self._hash = hashlib.sha1(self._script).hexdigest()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()

    def connection(self) -> Any:
        """Make one that is nobody else's."""
        return self._pool.make_connection()  # type: ignore[no-untyped-call]

    async def run(self, operation: str, *arguments: object) -> Any:
        """Run one operation of the script.

        Raises:
            Closed: The store is closed.
            DatabaseError: The server refused, or was silent for ``wait_timeout``; or it is unknown what became of it.
        """
        if self.is_closed:
            raise Closed("store")
        # In a task of its own: a caller that is cancelled would take the connection along, for an answer is due on it.
        return await asyncio.shield(self._start(self._answer(operation, arguments)))

    async def _answer(self, operation: str, arguments: tuple[object, ...]) -> Any:
        # Both ways everything is text, payloads too: the script's decoder knows no bytes.
        data, sent = msgspec.msgpack.encode(arguments), self._loop.time()
        self.in_hand += 1
        try:
            async with asyncio.timeout(self.patience), self._slots:
                if self.is_closed:
                    raise Closed("store")
                now, result = msgspec.msgpack.decode(await self._call(operation, data))
        except DRIVER as error:
            raise translated(error) from error
        finally:
            self.in_hand -= 1
            self.done += 1
        self.clock.heard(number(now), sent)
        return result

    async def wait_for(self, what: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask again and again while the answer is "held"; transactions hold positions for moments.

        Raises:
            DatabaseError: As `run`; or it was held for longer than ``wait_timeout``.
        """
        until = self._loop.time() + self.wait_timeout
        while (result := await ask()) == "held":
            if self._loop.time() >= until:
                error = DatabaseError(
                    f"{what} was held by another transaction for over {self.wait_timeout:g} s"
                )
                error._is_held_back = True
                raise error
            await asyncio.sleep(ASK_AGAIN)
        return result

    async def _call(self, operation: str, data: bytes) -> bytes:
        arguments = (1, self.prefix, operation, data)
        try:
            answer: bytes = await self._redis.execute_command("EVALSHA", self._hash, *arguments)
        except NoScriptError:  # the server is new, was restarted, or somebody flushed its scripts
            answer = await self._redis.execute_command("EVAL", self._script, *arguments)
        return answer

    def leave(self, operation: str, *arguments: object) -> None:
        """Run an operation that nobody awaits; to be called from a finaliser too, in whatever thread that runs."""
        if not self.is_closed and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self._start(self._answer(operation, arguments)))

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever awaits it sees it

    async def aclose(self) -> None:
        """End what is inside, with an error of unknown outcome, and every connection."""
        self.is_closed = True
        await self._pool.disconnect(inuse_connections=True)
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._pool.disconnect()  # and what one of them was just making


class Area:
    """A part of the engine's methods; they share its state."""

    _state: State


def translated(error: BaseException) -> DatabaseError:
    """Make the error that a caller sees; raise it ``from`` the driver's."""
    made = DatabaseError(f"redis: {str(error).strip() or type(error).__name__}")
    made.outcome_unknown = isinstance(error, UNKNOWN) and not isinstance(error, REFUSED)
    made._is_held_back = isinstance(error, TimeoutError)
    return made
