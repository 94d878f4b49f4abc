"""An observer that keeps what the dashboard shows of what happens: how many came and went, and whether wakes are heard."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from alkstore.observing import Destination, Fact, JobsEnqueued, JobSettled, ListenerChanged

__all__ = ["Listening", "Totals", "Witness"]

MOST: Final = 1_000
"""Queues and outboxes that are counted; those that come after them are not, or a name a job would fill the memory."""


class Listening(NamedTuple):
    """Whether the connection is there that hears of other processes' commits; ``reason`` says why it is not."""

    is_connected: bool
    reason: str | None


@dataclass(slots=True)
class Totals:
    """Since this process began: jobs enqueued, and claims that ended well, or with an error."""

    enqueued: int = 0
    done: int = 0
    failed: int = 0


class Witness:
    """Give it to `alkstore.open` as an observer and to `alkstore.dashboard.app`, which then shows rates of this process.

    Counts alone tell only how a backlog changes: jobs that are acked have no row. Without a witness that is what is shown.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._totals: dict[Destination, Totals] = {}
        self._listening: Listening | None = None

    def __call__(self, fact: Fact) -> None:
        """Hear of a fact, as an observer does."""
        if isinstance(fact, JobsEnqueued):
            if totals := self._of(fact.destination):
                totals.enqueued += len(fact.ids)
        elif isinstance(fact, JobSettled):
            if totals := self._of(fact.destination):
                totals.done += fact.outcome == "done"
                totals.failed += fact.outcome in ("retried", "dead", "lost")
        elif isinstance(fact, ListenerChanged):
            self._listening = Listening(fact.is_connected, fact.reason)

    @property
    def listening(self) -> Listening | None:
        """What the engine last told of its listener; None from an engine that needs none."""
        return self._listening

    @property
    def has_heard(self) -> bool:
        """Whether this process enqueues or works at all."""
        return bool(self._totals)

    def totals(self, destination: Destination) -> Totals:
        """Give what was counted of a queue or an outbox."""
        return self._totals.get(destination) or Totals()

    def _of(self, destination: Destination) -> Totals | None:
        found = self._totals.get(destination)
        if found is None and len(self._totals) < MOST:
            found = self._totals[destination] = Totals()
        return found
