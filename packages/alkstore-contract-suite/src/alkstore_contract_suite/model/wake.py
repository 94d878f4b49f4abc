"""Wakes: how many each receiver may have been told since it was emptied. Rows: WAKE-01 to WAKE-05."""

from collections import Counter
from collections.abc import Sequence

from alkstore_contract_suite.model.allowed import Allowed, just, such

__all__ = ["Ears"]


class Ears:
    """The open receivers by their names, each on one channel."""

    def __init__(self) -> None:
        self._channels: dict[str, str] = {}
        self._most: dict[str, int] = {}

    def open(self, ear: str, channel: str) -> None:
        """From now on it is told."""
        self._channels[ear] = channel
        self._most[ear] = 0

    def close(self, ear: str) -> None:
        """It is told nothing any more."""
        del self._channels[ear], self._most[ear]

    def notify(self, channels: Sequence[str]) -> None:
        """One commit with so many notifies."""
        told = Counter(channels)
        for ear, channel in self._channels.items():
            self._most[ear] += told[channel]

    def hear(self, ear: str) -> Allowed:
        """Allow as many wakes as there were notifies at most, and one at least if there were any."""
        most = self._most[ear]

        def then() -> None:
            self._most[ear] = 0

        if most == 0:
            return just(0)
        return such(f"1 to {most} wakes", lambda got: 1 <= got <= most, lambda _: then())
