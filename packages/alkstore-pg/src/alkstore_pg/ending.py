"""Waits that the store's close ends: for a connection to be made, for one to be free, for one's turn."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from alkstore.errors import Closed

__all__ = ["Ending"]


class Ending:
    """Knows who waits, and ends all of them with `Closed` once."""

    def __init__(self) -> None:
        self.is_reached = False
        self._waiting: set[asyncio.Task[object]] = set()
        self._ended: set[asyncio.Task[object]] = set()

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Wait in this block, which `reach` ends. A cancellation by somebody else goes through.

        Raises:
            Closed: The end was reached.
        """
        if self.is_reached:
            raise Closed("store")
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._waiting.add(task)
        try:
            yield
        except asyncio.CancelledError:
            # As asyncio.timeout() does it: the task is cancelled for us alone if nothing new is left after taking ours back.
            if task in self._ended and task.uncancel() <= before:
                raise Closed("store") from None
            raise
        finally:
            self._waiting.discard(task)
            self._ended.discard(task)

    def reach(self) -> None:
        """End every wait, and those that come."""
        self.is_reached = True
        for task in self._waiting:
            self._ended.add(task)
            task.cancel()
