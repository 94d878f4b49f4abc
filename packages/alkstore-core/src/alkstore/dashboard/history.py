"""What was seen, look by look, in bounded memory: every look of the last minutes, and one a minute of the last hours."""

from array import array
from bisect import bisect_left
from collections.abc import Hashable, Iterator
from math import isnan
from typing import Final, Generic, NamedTuple, TypeVar

__all__ = ["COARSE", "FINE", "History", "Point", "Span", "Track"]

K = TypeVar("K", bound=Hashable)


class Span(NamedTuple):
    """A stretch of time that is kept: ``seconds`` long, a look at most every ``step`` seconds."""

    seconds: float
    step: float


FINE: Final = Span(900.0, 2.0)
COARSE: Final = Span(21_600.0, 60.0)

JITTER: Final = 0.5
"""Seconds by which a look may come early without being left out."""


class Point(NamedTuple):
    """One look: when, in seconds since 1970, and what was seen; NaN where there was nothing to measure."""

    at: float
    values: tuple[float, ...]


class _Ring:
    """The last points of one span, as plain numbers: objects would take ten times the room."""

    def __init__(self, width: int, span: Span) -> None:
        self._width = width + 1
        self._step = span.step
        self._most = int(span.seconds / span.step) * self._width
        self._numbers = array("d")

    def add(self, at: float, values: tuple[float, ...]) -> None:
        numbers = self._numbers
        if numbers and at < numbers[-self._width]:
            del numbers[:]  # the clock was set back: what was seen before is of another time
        if numbers and at - numbers[-self._width] < self._step - JITTER:
            return
        numbers.append(at)
        numbers.extend(values)
        del numbers[: max(len(numbers) - self._most, 0)]

    def column(self, index: int) -> list[tuple[float, float]]:
        return list(zip(self._numbers[:: self._width], self._numbers[index + 1 :: self._width], strict=True))

    def since(self, at: float) -> Point | None:
        """Give the first point that is not older; found by halves, for there is a question for each figure of a page."""
        numbers, width = self._numbers, self._width
        found = bisect_left(range(len(numbers) // width), at, key=lambda place: numbers[place * width])
        start = found * width
        if start == len(numbers):
            return None
        return Point(numbers[start], tuple(numbers[start + 1 : start + width]))

    def __iter__(self) -> Iterator[Point]:
        numbers, width = self._numbers, self._width
        for start in range(0, len(numbers), width):
            yield Point(numbers[start], tuple(numbers[start + 1 : start + width]))


class Track:
    """What was seen of one thing: always the same numbers, in the same order.

    Attributes:
        seen: When there last was anything of it, in seconds since 1970.
    """

    def __init__(self, width: int) -> None:
        self._fine = _Ring(width, FINE)
        self._coarse = _Ring(width, COARSE)
        self._last: Point | None = None
        self.seen = 0.0

    def add(self, at: float, values: tuple[float, ...]) -> None:
        """Keep one look."""
        self._fine.add(at, values)
        self._coarse.add(at, values)
        self._last = Point(at, values)

    @property
    def last(self) -> Point | None:
        """The latest look."""
        return self._last

    def points(self, span: Span) -> list[Point]:
        """Give what is kept of a span, oldest first, and the latest look at its end."""
        found = list(self._fine if span == FINE else self._coarse)
        if self._last is not None and found and found[-1].at < self._last.at:
            found.append(self._last)
        return found

    def column(self, index: int) -> list[tuple[float, float]]:
        """Give one of the numbers over the last minutes: every instant with its value."""
        return self._fine.column(index)

    def change(self, index: int, seconds: float) -> float | None:
        """Give how fast one of the numbers has changed over about the last ``seconds``, a second; None if that is not known."""
        last = self._last
        if last is None:
            return None
        since = last.at - seconds - JITTER
        first = self._fine.since(since) or last
        # Less than a few looks is noise: one job that came or went would be a rate.
        if last.at - first.at < min(seconds, 4.0) - JITTER or isnan(first.values[index]):
            return None
        return (last.values[index] - first.values[index]) / (last.at - first.at)


class History(Generic[K]):
    """The tracks of many things, ``most`` of them; which was seen longest ago is forgotten first."""

    def __init__(self, width: int, most: int) -> None:
        self._width = width
        self._most = most
        self._tracks: dict[K, Track] = {}

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._tracks))

    def __len__(self) -> int:
        return len(self._tracks)

    def add(self, key: K, at: float, values: tuple[float, ...]) -> None:
        """Keep what was seen of one thing."""
        track = self._tracks.pop(key, None) or Track(self._width)
        self._tracks[key] = track  # at the end: the first one is the one that was seen longest ago
        track.add(at, values)
        track.seen = at
        while len(self._tracks) > self._most:
            del self._tracks[next(iter(self._tracks))]

    def fade(self, key: K, at: float, values: tuple[float, ...]) -> None:
        """Keep that there is nothing of it at the moment; forget it once there has been nothing for as long as is kept."""
        track = self._tracks[key]
        if at - track.seen > COARSE.seconds:
            del self._tracks[key]
        else:
            track.add(at, values)

    def forget(self, key: K) -> None:
        """Keep nothing of one thing any more: it is not known what it has become."""
        self._tracks.pop(key, None)

    def track(self, key: K) -> Track:
        """Give the track of one thing, an empty one if it was never seen."""
        return self._tracks.get(key) or Track(self._width)
