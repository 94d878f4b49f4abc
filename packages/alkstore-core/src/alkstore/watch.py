"""The hub: waking and timed waiting for engines whose commits and waiters share a process."""

import asyncio
from collections.abc import Callable, Iterable

from alkstore.clock import Clock, Timer
from alkstore.engine import Signal, Topic, TopicKind, Watch
from alkstore.errors import Closed, DatabaseError

__all__ = ["Hub"]


class Hub:
    """Every open watch of one storage, by topic. Not thread-safe: call it in the event loop's thread.

    ``forgotten`` is called with a topic when its last watch has gone, for engines that keep something of each.
    """

    def __init__(self, clock: Clock, forgotten: Callable[[Topic], object] | None = None) -> None:
        self.clock = clock
        self._forgotten = forgotten
        self._watches: dict[Topic, dict[_HubWatch, None]] = {}
        self._closed = False

    def watch(self, topic: Topic) -> Watch:
        """Open a watch that hears every `wake` of its topic from now on.

        Raises:
            Closed: The hub is closed.
        """
        if self._closed:
            raise Closed("store")
        watch = _HubWatch(self, topic)
        self._watches.setdefault(topic, {})[watch] = None
        return watch

    def wake(self, topic: Topic, times: int = 1) -> None:
        """Wake every watch of a topic, in the order in which they were opened."""
        for watch in self._watches.get(topic, ()):
            watch.note(times)

    def is_watched(self, topic: Topic) -> bool:
        """Whether anybody waits for this topic, for engines that probe storage only for what is waited for."""
        return topic in self._watches

    def topics(self) -> Iterable[Topic]:
        """Everything that somebody waits for."""
        return list(self._watches)

    def reconnected(self) -> None:
        """Tell every watch that wakes may have been lost meanwhile."""
        for watch in self._all():
            watch.note_reconnected()

    def fail(self, error: DatabaseError) -> None:
        """End every watch: nothing can be heard any more. Watches opened later are not touched, nor those of the clock,
        which hear nothing: who waits for an instant to renew a lease must not lose it to a deaf store.
        """
        for watch in self._all():
            if watch.topic.kind is not TopicKind.CLOCK:
                watch.end(error)

    def aclose(self) -> None:
        """End every watch with CLOSED, and refuse new ones."""
        self._closed = True
        for watch in self._all():
            watch.end(None)

    def _all(self) -> list["_HubWatch"]:
        return [watch for watches in self._watches.values() for watch in watches]

    def drop(self, watch: "_HubWatch") -> None:
        watches = self._watches.get(watch.topic)
        if watches is not None:
            watches.pop(watch, None)
            if not watches:
                del self._watches[watch.topic]
                if self._forgotten is not None:
                    self._forgotten(watch.topic)


class _HubWatch:
    """A counter (channels: one wake a notify) or a flag (everything else), and at most one waiter."""

    __slots__ = ("_ended", "_error", "_hub", "_pending", "_reconnected", "_waiter", "topic")

    def __init__(self, hub: Hub, topic: Topic) -> None:
        self.topic = topic
        self._hub = hub
        self._pending = 0
        self._reconnected = False
        self._ended = False
        self._error: DatabaseError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def note(self, times: int) -> None:
        self._pending = self._pending + times if self.topic.kind is TopicKind.CHANNEL else 1
        self._stir()

    def note_reconnected(self) -> None:
        self._reconnected = True
        self._stir()

    def end(self, error: DatabaseError | None) -> None:
        self._ended = True
        self._error = error
        self._pending = 0
        self._hub.drop(self)
        self._stir()

    def close(self) -> None:
        if not self._ended:
            self.end(None)

    def poll(self) -> Signal | None:
        if self._ended:
            if self._error is not None:
                raise self._error._twin()  # one error for every watch and every look
            return Signal.CLOSED
        if self._reconnected:
            self._reconnected = False
            self._pending = max(self._pending - 1, 0)
            return Signal.RECONNECTED
        if self._pending:
            self._pending -= 1
            return Signal.WOKEN
        return None

    async def wait(self, until: int | None = None) -> Signal:
        clock = self._hub.clock
        while (signal := self.poll()) is None:
            if until is not None and clock.now() >= until:
                return Signal.DUE
            await self._suspend(until)
        return signal

    async def _suspend(self, until: int | None) -> None:
        # What was noted stays noted until poll() takes it, so a cancellation here loses nothing.
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        timer: Timer | None = None if until is None else self._hub.clock.call_at(until, self._stir)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _stir(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
