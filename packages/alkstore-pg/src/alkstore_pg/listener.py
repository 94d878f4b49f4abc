"""The listener: the one connection on which a store hears what others commit.

State model. A task makes the connection, sends LISTEN, and has another connection send a notify that must come here.
From there on it is *up*; it sends a notify of its own each ``probe_interval``, which must come back, and makes a round
trip for whoever wants to have heard everything up to now. No answer in time, or the connection's end, and it is *down*: the task backs off, begins anew, for
ever, and once it is up again everybody is told that wakes may have been lost. Nobody but the task uses the connection,
so cancelling a caller never cancels a query; a query without an answer ends by ending the connection.
"""

import asyncio
import contextvars
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Final, Protocol

from alkstore import statements
from alkstore.errors import AlkstoreError, Closed, DatabaseError, show
from alkstore_pg.errors import DRIVER, sqlstate, translate
from alkstore_pg.link import Connection, DriverSession
from alkstore_pg.session import Schema

__all__ = ["Listener", "Surroundings"]

LOGGER: Final = logging.getLogger("alkstore")

_SQL: Final = statements.load("alkstore_pg", "wake")

FIRST_BACK_OFF: Final = 0.05
"""Seconds before the second attempt to connect; it doubles from there."""

LONGEST_BACK_OFF: Final = 5.0
"""Seconds; with LONGEST_DIAL it keeps recovery well within 30 s (DUR-05)."""

LONGEST_DIAL: Final = 10.0
"""Seconds: a connect that began while the network was away may sit out a long pause of TCP's own."""

LEAST_PATIENCE: Final = 1.0
"""Seconds: however often it probes, a busy server is not a dead one."""

MOST_PATIENCE: Final = 9.0
"""Seconds that it waits for an answer: with a probe each 10 s a dead network is found within 20 s (WAKE-08)."""

GRACE: Final = 1.0
"""Seconds after that, since where the loop stood still the answer may lie in the socket."""

LONGEST_CHECK: Final = 3.0
"""Seconds that the other connection may take to send what must be heard here: it may be in trouble of its own."""

FIRST_WAIT: Final = 1.0
"""Seconds that the first attempt may hold up who has a poll behind him."""

_DEAF: Final = (
    "what another connection notifies does not come here, as behind a pooler that shares connections; "
    "let listener_dsn lead to the same database without one"
)

_LASTING: Final = ("28", "3D")
"""Classes of errors that no waiting mends: a wrong role or password, a database that is not there."""


class _Deaf(ConnectionError):
    """LISTEN was accepted, and nothing comes."""


class Surroundings(Protocol):
    """What the listener must know of its store."""

    @property
    def schema(self) -> Schema: ...

    @property
    def listen(self) -> bool: ...

    @property
    def probe_interval(self) -> float: ...

    @property
    def wait_timeout(self) -> float: ...

    @property
    def random(self) -> Random: ...

    async def dial_listener(self) -> Connection: ...


class Listener:
    """Hears the schema's channel until it is closed.

    Args:
        options: Where to connect, and how patient to be.
        tell: Sends a text from another connection.
        heard: Is given each text, in order of commit; must not raise.
        reconnected: Is called when texts may have been lost, after the renewed LISTEN.
        report: Is called with None whenever it has come up, and with the reason when it has gone down; must not raise.
    """

    def __init__(
        self,
        options: Surroundings,
        *,
        tell: Callable[[str], Awaitable[object]],
        heard: Callable[[str], object],
        reconnected: Callable[[], object],
        report: Callable[[str | None], object],
    ) -> None:
        self._options = options
        self._tell = tell
        self._heard = heard
        self._reconnected = reconnected
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._patience = min(max(options.probe_interval, LEAST_PATIENCE), MOST_PATIENCE)
        self._mark = secrets.token_hex(8)
        self._probes = 0
        self._probe = ""
        self._echo: asyncio.Future[None] | None = None
        self._tried: asyncio.Future[None] = self._loop.create_future()
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._nap: asyncio.Future[None] | None = None
        self._guard: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._verdict: Exception | None = None
        self._is_up = False
        self._has_missed = False
        self._is_closed = False
        # In a context of its own: the first who waits would be kept alive by what his context holds.
        self._task = self._loop.create_task(self._run(), context=contextvars.Context())

    async def begun(self) -> None:
        """Wait for the first attempt to connect, FIRST_WAIT at most; whoever does not find it up hears of it later.

        Raises nothing but a cancellation. Cost: nothing after the first attempt.
        """
        if not self._tried.done():
            await asyncio.wait((self._tried,), timeout=FIRST_WAIT)
        if not self._is_up:
            self._has_missed = True

    async def caught_up(self) -> None:
        """Return when everything that was acknowledged before this call has been given to ``heard``.

        Raises:
            Closed: The store was closed.
            DatabaseError: There is no connection, nor was one made within ``wait_timeout``.

        Cost: a round trip, shared with who asks at the same time.
        """
        if self._is_closed:
            raise Closed("store")
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting[waiter] = None
        self._stir()
        try:
            async with asyncio.timeout(self._options.wait_timeout):
                await waiter
        except TimeoutError as error:
            raise self._refusal() from (self._error or error)
        finally:
            self._waiting.pop(waiter, None)

    async def aclose(self) -> None:
        """End the connection and everybody's wait for it."""
        self._is_closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(Closed("store"))
        if not self._tried.done():
            self._tried.set_result(None)  # the task may never have begun
        self._task.cancel()
        await asyncio.wait((self._task,))

    # ------------------------------------------------------------ the task

    async def _run(self) -> None:
        pause = FIRST_BACK_OFF
        while True:
            began = self._loop.time()
            error = await self._live()
            if self._is_closed:
                return
            self._note(error)
            if self._loop.time() - began >= LONGEST_BACK_OFF:
                pause = FIRST_BACK_OFF
            await asyncio.sleep(pause * (1 - self._options.random.random() / 2))
            pause = min(pause * 2, LONGEST_BACK_OFF)

    async def _live(self) -> Exception:
        """Make a connection and use it to its end; gives what ended it."""
        connection: Connection | None = None
        self._verdict = None
        try:
            async with asyncio.timeout(LONGEST_DIAL):
                connection = await self._options.dial_listener()
            connection.add_termination_listener(self._lost)
            with self._guarding(connection):
                await connection.add_listener(self._options.schema.channel, self._receive)
            session = DriverSession(connection, self._options.schema)
            await self._check(session)
            await self._attend(session)
            raise AssertionError("it attends until something is raised")
        except Exception as error:
            # Whatever it is: nobody else listens for this store, so it is told of and tried again.
            return self._verdict or error
        finally:
            self._is_up = False
            if connection is not None:
                connection.terminate()
            if not self._tried.done():
                self._tried.set_result(None)

    async def _check(self, session: DriverSession) -> None:
        """See that what another connection notifies comes here: that LISTEN went well does not show it."""
        with self._expecting() as (text, echo):
            try:
                async with asyncio.timeout(LONGEST_CHECK):
                    await self._tell(text)
            except (AlkstoreError, TimeoutError):
                return  # that connection's failure says nothing of this one
            await asyncio.wait((echo,), timeout=LEAST_PATIENCE)
            if not echo.done():
                with self._guarding(session.connection):
                    await session.fetch(_SQL["look"])
            if not echo.done():
                raise _Deaf(_DEAF)

    async def _attend(self, session: DriverSession) -> None:
        connection = session.connection
        probe_at = self._loop.time() + self._options.probe_interval
        while True:
            waiting = list(self._waiting)
            with self._guarding(connection):
                if self._loop.time() >= probe_at:
                    with self._expecting() as (text, echo):
                        await session.fetch(_SQL["notify"], [text])
                        await echo
                    probe_at = self._loop.time() + self._options.probe_interval
                else:
                    await session.fetch(_SQL["look"])
            _check_open(connection)
            self._come_up()
            for waiter in waiting:
                self._waiting.pop(waiter, None)
                if not waiter.done():
                    waiter.set_result(None)
            await self._rest(connection, probe_at)
            _check_open(connection)

    @contextmanager
    def _expecting(self) -> Iterator[tuple[str, asyncio.Future[None]]]:
        """Give a probe that nobody ever sent, and what is done when it comes, or when the connection ends."""
        self._probes += 1
        name = f"{self._mark}-{self._probes}"
        self._probe = f"p{len(name)}:{name}"
        self._echo = self._loop.create_future()
        try:
            yield self._probe, self._echo
        finally:
            self._echo = None

    async def _rest(self, connection: Connection, until: float) -> None:
        """Sleep until somebody wants a round trip, or until the next probe, or until the connection's end."""
        if self._waiting or connection.is_closed():
            return
        self._nap = self._loop.create_future()
        alarm = self._loop.call_at(until, self._stir)
        try:
            await self._nap
        finally:
            alarm.cancel()
            self._nap = None

    def _come_up(self) -> None:
        if self._is_up:
            return
        self._is_up = True
        self._report(None)
        if not self._tried.done():
            self._tried.set_result(None)
        if self._error is not None:
            self._error = None
            LOGGER.info("listens again for schema %s", show(self._options.schema.name))
        if self._has_missed:
            self._has_missed = False
            self._reconnected()

    def _note(self, error: Exception) -> None:
        self._has_missed = True
        if self._error is None:
            reason = str(translate(error, writes=False))
            self._report(reason)
            LOGGER.warning(
                "cannot listen for schema %s, whoever waits polls until that is mended: %s",
                show(self._options.schema.name),
                reason,
                exc_info=None if isinstance(error, DRIVER) else error,  # else it is a bug
            )
        self._error = error
        if isinstance(error, _Deaf) or (sqlstate(error) or "")[:2] in _LASTING:
            for waiter in self._waiting:
                if not waiter.done():
                    refusal = self._refusal()
                    refusal.__cause__ = error
                    waiter.set_exception(refusal)

    def _refusal(self) -> DatabaseError:
        error = self._error
        why = (
            "no answer" if error is None else str(translate(error, writes=False)).removeprefix("postgresql: ")
        )
        return DatabaseError(
            f"postgresql: cannot listen (wait_timeout is {self._options.wait_timeout:g} s): {why}"
        )

    # ------------------------------------------------------------ called by the loop

    def _receive(self, _connection: object, _pid: int, _channel: str, text: object) -> None:
        if text == self._probe:
            self._end_probe()
        elif isinstance(text, str):
            self._heard(text)

    def _lost(self, _connection: object) -> None:
        self._end_probe()
        self._stir()

    def _end_probe(self) -> None:
        if self._echo is not None and not self._echo.done():
            self._echo.set_result(None)

    def _stir(self) -> None:
        if self._nap is not None and not self._nap.done():
            self._nap.set_result(None)

    @contextmanager
    def _guarding(self, connection: Connection) -> Iterator[None]:
        self._guard = self._loop.call_later(self._patience, self._doubt, connection)
        try:
            yield
        finally:
            self._guard.cancel()

    def _doubt(self, connection: Connection) -> None:
        self._guard = self._loop.call_later(GRACE, self._cut, connection)

    def _cut(self, connection: Connection) -> None:
        self._verdict = TimeoutError(f"no answer within {self._patience + GRACE:g} s")
        connection.terminate()


def _check_open(connection: Connection) -> None:
    if connection.is_closed():
        raise ConnectionError("the server or the network ended the connection")
