"""Streams: events in the order of their offsets, positions of consumers, and places of receivers. Rows: STR-01 to STR-14."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from alkstore_contract_suite.model.allowed import Allowed, just, raising, such

__all__ = ["Event", "Stream", "Streams"]


class Event(NamedTuple):
    """An event as a store shows it."""

    offset: int
    key: str | None
    payload: object
    created_at: int


class Stream:
    """One stream: what was ever published, up to where it was trimmed, and who has read how far."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.horizon = 0
        self.last = 0
        self.consumers: dict[str, int] = {}

    def copy(self) -> "Stream":
        other = Stream()
        other.events, other.horizon, other.last = self.events.copy(), self.horizon, self.last
        other.consumers = self.consumers.copy()
        return other

    def publish(
        self, now: int, payloads: Sequence[object], key: str | None, *, is_first: bool = False
    ) -> Allowed:
        """Allow rising offsets past every earlier one; ``is_first`` demands 1 of a stream that never had any."""

        def fits(offsets: list[int]) -> bool:
            before = [self.last, *offsets]
            is_rising = all(one < other for one, other in zip(before, offsets, strict=False))
            return len(offsets) == len(payloads) and is_rising and (not is_first or offsets[:1] in ([], [1]))

        def then(offsets: list[int]) -> None:
            self.events += [
                Event(offset, key, payload, now) for offset, payload in zip(offsets, payloads, strict=True)
            ]
            self.last = max([self.last, *offsets])

        wanted = "from 1 on" if is_first else f"past {self.last}"
        return such(f"{len(payloads)} rising offsets {wanted}", fits, then)

    def since(self, offset: int, limit: int) -> list[Event]:
        """Give what a read finds."""
        found = [event for event in self.events if event.offset > max(offset, self.horizon)]
        return found[: max(limit, 0)]

    def next_after(self, place: int) -> Allowed:
        """Allow what a receiver at this place may give: the next event, and after a trim what was on its page already."""
        kept = self.since(place, 1)
        paged = [event for event in self.events if place < event.offset <= self.horizon][:1]
        if not kept and not paged:
            return just(None)
        allowed: list[Event | None] = [*kept, *paged] if kept else [None, *paged]
        return such(" or ".join(map(repr, allowed)), lambda got: got in allowed, lambda _: None)

    def trim(self, horizon: int) -> Allowed:
        """What stands up to the horizon goes, and nothing else changes."""
        gone = [event for event in self.since(0, len(self.events)) if event.offset <= horizon]

        def then() -> None:
            self.horizon = max(self.horizon, min(horizon, self.last))

        return just(len(gone), then)

    # ---------------------------------------------------------------- positions

    def position(self, consumer: str) -> int:
        """Give where a consumer is; 0 if it never saved."""
        return self.consumers.get(consumer, 0)

    def save(self, consumer: str, offset: int) -> Allowed:
        """It moves forward only."""
        is_further = offset > self.position(consumer)
        return just(is_further, lambda: self._put(consumer, offset) if is_further else None)

    def reset(self, consumer: str, offset: int) -> Allowed:
        """It moves anywhere."""
        return just(None, lambda: self._put(consumer, offset))

    def save_after(self, consumer: str, offset: int, after: int | None) -> Allowed:
        """A transaction's compare-and-set; without anything to compare with it must move forward."""
        position = self.position(consumer)
        is_good = offset > position if after is None else position == after
        return just(None, lambda: self._put(consumer, offset)) if is_good else raising("OffsetConflict")

    def _put(self, consumer: str, offset: int) -> None:
        self.consumers[consumer] = offset

    def moved(self) -> Mapping[str, int]:
        """Give the positions that are elsewhere than an unknown consumer's."""
        return {consumer: offset for consumer, offset in self.consumers.items() if offset != 0}


class Streams:
    """Every stream of one storage; of one whose events were all trimmed the contract does not say whether it is listed."""

    def __init__(self) -> None:
        self._all: dict[str, Stream] = {}
        self._noted: set[str] = set()

    def copy(self) -> "Streams":
        other = Streams()
        other._all = {name: stream.copy() for name, stream in self._all.items()}
        other._noted = self._noted
        return other

    def __getitem__(self, name: str) -> Stream:
        return self._all.setdefault(name, Stream())

    def is_quiet(self, name: str) -> bool:
        """Whether nobody ever wrote to this stream, so that its first event has offset 1.

        Of one that had a consumer or a transaction before it had an event the contract does not say it clearly.
        """
        return name not in self._noted

    def note(self, name: str) -> None:
        """Remember that somebody had to do with it; no rollback takes that back."""
        self._noted.add(name)

    def listed(self) -> Allowed:
        """Allow the streams that have events, sorted, and those that had any, or have positions, if they have rows."""
        must = {name for name, stream in self._all.items() if stream.since(0, 1)}
        may = {name for name, stream in self._all.items() if stream.last or stream.consumers}

        def fits(names: list[str]) -> bool:
            return names == sorted(names) and must <= {*names} <= may

        return such(f"{sorted(must)}, and of {sorted(may - must)} what has rows", fits, lambda _: None)
