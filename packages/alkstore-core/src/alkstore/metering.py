"""What metrics of every kind share: the bounds of their histograms, and names as labels, a bounded number of them."""

from collections.abc import Callable
from typing import Final

from alkstore import numbers
from alkstore.observing import Destination

__all__ = ["OTHER", "SIZES", "WAITS", "Labels"]

WAITS: Final = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3_600, 14_400)
"""Seconds that jobs wait: from a hand-over at once to a backlog of hours."""

SIZES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
"""What goes with one round trip."""

OTHER: Final = "other"
"""What the label says of the destinations that came after the first ones."""


class Labels:
    """Gives the first destinations labels of their own; a queue a tenant would fill the memory with series otherwise.

    Args:
        most: How many have their own.
        begin: Called with each of those when it first comes.

    Raises:
        InvalidArgument: ``most`` is not positive.
    """

    def __init__(self, most: int, begin: Callable[[Destination], object] | None = None) -> None:
        self._most = numbers.integer(most, "most", least=1)
        self._begin = begin
        self._known: set[Destination] = set()

    @property
    def most(self) -> int:
        """How many have labels of their own."""
        return self._most

    def name(self, destination: Destination) -> str:
        """Give the name of a destination, or `OTHER`."""
        if destination not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(destination)
            if self._begin is not None:
                self._begin(destination)
        return destination.name
