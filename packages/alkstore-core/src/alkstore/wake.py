"""Receivers: what both kinds share, and the one that hears a channel."""

import asyncio
import logging
import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from alkstore import numbers
from alkstore.engine import Signal, Watch
from alkstore.errors import Closed, DatabaseError, InvalidArgument
from alkstore.stamps import Duration
from alkstore.values import Wake

if TYPE_CHECKING:
    from alkstore.store import Store

__all__ = ["Receiver", "WakeReceiver"]

LOGGER: Final = logging.getLogger("alkstore")


class Receiver:
    """One watch, one task that receives at a time, and an end that every later call sees.

    It ends by `aclose`, with its store, or when the engine can hear nothing any more (that is logged).
    """

    # A half-made one is nothing to warn about when it is collected.
    _is_ended: bool = True

    def __init__(self, store: "Store", watch: Watch) -> None:
        self._store = store
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._is_receiving = False
        self._error: DatabaseError | None = None
        self._is_ended = False
        store._track(self)

    async def aclose(self) -> None:
        """Stop hearing: drops what is pending and ends a call that waits. Closing twice is fine.

        Raises:
            InvalidArgument: Called in another event loop than the one that opened it.
        """
        if asyncio._get_running_loop() is not self._loop:
            raise InvalidArgument("receiver belongs to the event loop that opened it; close it there")
        self._end()

    def _end(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._watch.close()
            self._store._untrack(self)

    def _fail(self, error: DatabaseError) -> None:
        """End because the engine can hear nothing any more; the next one opened may."""
        LOGGER.warning("%r ended: %s", self, error)
        self._error = error
        self._end()

    def _begin(self, operation: str) -> bool:
        """Become the one call that receives; False if the receiver has ended.

        Raises:
            InvalidArgument: Another task is in such a call, or this is another event loop.
        """
        if self._is_ended:
            return False
        try:
            self._store._check(operation, write=False)
        except Closed:  # the store is closing and has not reached this receiver yet
            return False
        if self._is_receiving:
            raise InvalidArgument(
                f"{operation} is under way in another task; one task receives at a time, open another receiver"
            )
        self._is_receiving = True
        return True

    def _closed(self) -> Closed:
        error = Closed("receiver")
        error.__cause__ = self._error
        return error

    def __del__(self) -> None:
        if self._is_ended or sys.is_finalizing():
            return
        self._is_ended = True
        # The collector runs in any thread and at any point, in the middle of a wake too: the loop closes the watch.
        with suppress(RuntimeError):  # a closed loop has no watches left
            self._loop.call_soon_threadsafe(self._watch.close)
        warnings.warn(
            f"{self!r} was never closed; use 'async with' or await its aclose()",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )


class WakeReceiver(Receiver):
    """Hears one channel. A wake is a hint that something changed: read again what you watch.

    Made by `Store.listen`. Wakes that come while nobody receives are kept, as a number, not as data.
    Rows: WAKE-01 to WAKE-09.
    """

    def __init__(self, store: "Store", channel: str, watch: Watch) -> None:
        self._channel = channel
        super().__init__(store, watch)

    def __repr__(self) -> str:
        return f"<WakeReceiver {self._channel!r} {'closed' if self._is_ended else 'open'}>"

    async def recv(self) -> Wake | None:
        """Wait for the next wake; None once the receiver is closed, again and again. Cancelling it loses nothing.

        Raises:
            InvalidArgument: Another task is receiving.

        Rows: WAKE-04, WAKE-06, WAKE-09.
        """
        if not self._begin("WakeReceiver.recv"):
            return None
        try:
            return self._wake(await self._watch.wait())
        except DatabaseError as error:
            self._fail(error)
            return None
        finally:
            self._is_receiving = False

    async def try_recv(self) -> Wake | None:
        """Take a wake that is pending, or None.

        Raises:
            Closed: The receiver is closed.

        Rows: WAKE-06.
        """
        return await self._recv_within(0.0, "WakeReceiver.try_recv")

    async def recv_timeout(self, seconds: Duration) -> Wake | None:
        """Wait for the next wake for so many seconds of the event loop's time; None if none came.

        Args:
            seconds: <= 0 is one try, as `try_recv`.

        Raises:
            Closed: The receiver is closed, or was meanwhile.
            InvalidArgument: ``seconds`` is no duration, or another task is receiving.

        Rows: WAKE-06.
        """
        return await self._recv_within(numbers.timeout(seconds, "seconds"), "WakeReceiver.recv_timeout")

    async def _recv_within(self, seconds: float | None, operation: str) -> Wake | None:
        if not self._begin(operation):
            raise self._closed()
        try:
            signal = await self._hear(seconds)
            wake = None if signal is None else self._wake(signal)
        except DatabaseError as error:
            self._fail(error)
            wake = None
        finally:
            self._is_receiving = False
        if self._is_ended:
            raise self._closed()
        return wake

    async def _hear(self, seconds: float | None) -> Signal | None:
        if seconds is None or seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    return await self._watch.wait()
        return self._watch.poll()  # what came together with the timeout is given, not kept for later

    def _wake(self, signal: Signal) -> Wake | None:
        if signal is Signal.CLOSED:
            self._end()
        if self._is_ended:
            return None
        return Wake(self._channel, signal is Signal.RECONNECTED)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Wake:
        wake = await self.recv()
        if wake is None:
            raise StopAsyncIteration
        return wake
