"""Asking waits and runners to stop, from anywhere."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from alkstore.errors import InvalidArgument, show

__all__ = ["StopToken", "check_stop"]


class StopToken:
    """A flag that is raised once and stays up. One token may stop many waits, in several event loops.

    It holds no lock: a signal handler may interrupt the very thread that would hold it. What orders things instead is
    that a subscriber adds itself before it looks at the flag, and `cancel` sets the flag before it looks for
    subscribers: so at least one of the two sees the other, and a subscription calls back only once.
    """

    __slots__ = ("__weakref__", "_is_cancelled", "_subscriptions")

    def __init__(self) -> None:
        self._is_cancelled = False
        self._subscriptions: dict[_Subscription, None] = {}

    def __repr__(self) -> str:
        return f"<StopToken {'cancelled' if self._is_cancelled else 'not cancelled'}>"

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called; never False again after that."""
        return self._is_cancelled

    def cancel(self) -> None:
        """Stop everything that this token was given to. From any task, thread or signal handler, any number of times."""
        self._is_cancelled = True
        for subscription in list(self._subscriptions):
            subscription.call()

    async def wait(self) -> None:
        """Wait until `cancel` is called; at once if it was."""
        if self._is_cancelled:
            return
        stopped = asyncio.Event()
        unsubscribe = self.subscribe(stopped.set)
        try:
            await stopped.wait()
        finally:
            unsubscribe()

    def subscribe(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back once, soon, in the running event loop, when `cancel` is or was called.

        Returns:
            The function that forgets the callback, in the same loop; after it the callback is not called any more.
        """
        subscription = _Subscription(self._subscriptions, callback)
        self._subscriptions[subscription] = None
        if self._is_cancelled:
            subscription.call()
        return subscription.end


class _Subscription:
    __slots__ = ("_callback", "_loop", "_subscriptions")

    def __init__(self, subscriptions: dict["_Subscription", None], callback: Callable[[], object]) -> None:
        self._subscriptions = subscriptions
        self._callback: Callable[[], object] | None = callback
        self._loop = asyncio.get_running_loop()

    def call(self) -> None:
        # A loop that was closed has nobody left to stop.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._run)

    def end(self) -> None:
        self._callback = None
        self._subscriptions.pop(self, None)

    def _run(self) -> None:
        callback = self._callback
        self.end()
        if callback is not None:
            callback()


def check_stop(stop: object) -> None:
    """Refuse what is no stop token before anything waits for it.

    Raises:
        InvalidArgument: ``stop`` is something else.
    """
    if not isinstance(stop, StopToken):
        raise InvalidArgument(f"stop must be a StopToken, got {show(stop)}")
