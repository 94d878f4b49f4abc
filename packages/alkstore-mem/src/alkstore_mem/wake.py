"""Wakes: the hub of the store's own event loop hears of every commit as it happens."""

from collections.abc import Iterable

from alkstore.engine import Topic, TopicKind, Watch
from alkstore_mem.state import State

__all__ = ["Wakes"]


class Wakes:
    """Every channel of one store. A channel has no row: who does not watch it has nothing to hear."""

    def __init__(self, state: State) -> None:
        self._state = state

    def notify(self, channels: Iterable[str]) -> None:
        """Wake channels one by one, in order: each is one wake, whatever became of those before it."""
        self._state.wake(Topic(TopicKind.CHANNEL, channel) for channel in channels)

    def watch(self, topic: Topic) -> Watch:
        return self._state.hub.watch(topic)
