"""Waiting for a watch with a limit on the event loop's time and a stop token."""

import asyncio
from collections.abc import Callable

from alkstore.engine import Signal, Watch
from alkstore.stop import StopToken

__all__ = ["Pause"]


class Pause:
    """One wait at a time that somebody else may cut short."""

    __slots__ = ("_scope",)

    def __init__(self) -> None:
        self._scope: asyncio.Timeout | None = None

    def cut(self) -> None:
        """End the wait that is under way, if any."""
        scope, self._scope = self._scope, None
        if scope is not None and not scope.expired():  # one that has run out ends by itself, and refuses this
            scope.reschedule(0)

    async def wait(
        self,
        watch: Watch,
        *,
        until: int | None = None,
        timeout: float | None = None,
        stop: StopToken | None = None,
    ) -> Signal | None:
        """Wait for the watch; None if the timeout (seconds), the stop or a `cut` came first.

        A wake that arrives together with the cut is not lost: the watch keeps it.
        """
        unsubscribe: Callable[[], None] | None = None
        try:
            async with asyncio.timeout(timeout) as self._scope:
                if stop is not None:
                    unsubscribe = stop.subscribe(self.cut)
                signal = await watch.wait(until)
        except TimeoutError:
            return None
        finally:
            self._scope = None
            if unsubscribe is not None:
                unsubscribe()
        if signal is Signal.DUE:
            # Of an engine that gives an instant which has passed it is due again at once: nobody else would get the loop.
            await asyncio.sleep(0)
        return signal
