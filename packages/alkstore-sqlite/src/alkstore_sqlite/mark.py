"""Marks: where a topic stands in storage, as numbers, and which of their movements wake those who wait for it.

State model. Commits of this store tell their marks as they land; those of everybody else are read by the watcher. Both
may tell of the same movement, in any order, and only the first one wakes:

- a channel's counter and a stream's head grow: what is greater than seen is news;
- a lock's mark is its end (0 while it is free) and its fence: an end that comes sooner is news, and so is an acquisition
  that was over before it was seen, for somebody may have been told of its end;
- a schedule's is (last id, number of schedules): any other one is news;
- a queue's is the instant at which its first row is claimable. It is news unless a claim saw it, or told an instant that
  is no later: whoever waits has that as its alarm.
"""

import threading
from typing import Final, NamedTuple, TypeAlias

from alkstore.engine import Topic, TopicKind

__all__ = ["Board", "Mark", "Report", "Watched"]

Mark: TypeAlias = tuple[int, ...]

FREE: Final = 0


class Watched:
    """A topic that somebody in this store waits for.

    The loop writes everything but ``reported``, which is the watcher's; the watcher reads ``told``, ``claims`` and
    ``seen``, and may read them late: it then reports too much, and the loop judges.
    """

    __slots__ = ("began", "claims", "kept", "reported", "seen", "told", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.seen: Mark | None = None
        self.reported: Mark | None = None
        self.claims = 0
        """Claims of this queue on their way."""
        self.began = 0.0
        """time.monotonic() at which the last of them had the write lock, and saw everything committed before."""
        self.told: int | None = None
        """The instant that it told; None if it told none."""
        self.kept: Report | None = None

    def is_worth(self, mark: Mark) -> bool:
        """Whether the watcher is to report a mark that it read. Not exact: what is reported twice wakes once."""
        kind = self.topic.kind
        if kind is TopicKind.QUEUE:
            # In this order: the loop sets `told` before it counts a claim out. Equal marks are two jobs as often as one.
            return bool(self.claims) or self.told is None or mark[0] < self.told
        if mark == self.reported:
            return False
        seen = self.seen
        return kind not in _GROWING or seen is None or mark > seen

    def hear(self, mark: Mark) -> bool:
        """Take the mark of anything but a queue; True if it is news."""
        seen, kind = self.seen, self.topic.kind
        if kind in _GROWING:
            if seen is not None and mark <= seen:
                return False
            self.seen = mark
            return True
        if kind is TopicKind.LOCK and len(mark) == 1 and seen is not None:
            mark += seen[1:]  # a commit of our own tells the end alone
        self.seen = mark
        return mark != seen if kind is TopicKind.SCHEDULE else seen is None or _is_sooner(mark, seen)

    def judge(self, report: "Report") -> bool:
        """Take the mark of a queue; True if it is news. While a claim is on its way nobody can tell: it is kept."""
        if self.claims:
            self.kept = report
            return False
        if self.began >= report.read_at:
            return False
        return self.told is None or report.mark[0] < self.told

    def begin_claim(self) -> None:
        """A claim was handed to the writer."""
        self.claims += 1

    def end_claim(self, began: float | None, told: int | None) -> bool:
        """A claim has ended, or failed (None); True if what was kept meanwhile is news."""
        self.began = max(self.began, began or 0.0)
        self.told = told
        self.claims = max(self.claims - 1, 0)  # it may have begun before this topic was watched
        kept = self.kept
        if self.claims or kept is None:
            return False
        self.kept = None
        return self.judge(kept)


_GROWING: Final = frozenset({TopicKind.CHANNEL, TopicKind.STREAM})


def _is_sooner(mark: Mark, seen: Mark) -> bool:
    if mark[0] < seen[0]:
        return True
    if len(mark) == 1 or len(seen) == 1:
        return len(mark) > 1 and mark[0] == FREE
    gained = mark[1] - seen[1]
    return gained > 1 or (gained == 1 and mark[0] == FREE)


class Report(NamedTuple):
    """A mark that the watcher read, and time.monotonic() when it had read it."""

    watched: Watched
    mark: Mark
    read_at: float


class Board:
    """Every topic that is waited for. The loop writes it, the watcher takes copies of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[Topic, Watched] = {}
        self.version = 0
        """Moves with every change, so that nothing is copied twice."""
        self.is_empty = True
        """Whether nobody waits for anything: every commit asks."""

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, topic: Topic) -> Watched | None:
        """Give what is known of a topic; None if nobody waits for it. For the loop."""
        return self._topics.get(topic)

    def add(self, topic: Topic) -> Watched:
        """Give what is known of a topic, from now on if nothing was."""
        watched = self._topics.get(topic)
        if watched is None:
            watched = Watched(topic)
            with self._lock:
                self._topics[topic] = watched
                self.version += 1
                self.is_empty = False
        return watched

    def forget(self, topic: Topic) -> None:
        """Nobody waits for it any more: a store that meets a million names stays small."""
        with self._lock:
            if self._topics.pop(topic, None) is not None:
                self.version += 1
                self.is_empty = not self._topics

    def copy(self) -> tuple[int, list[Watched]]:
        """Give the topics of this moment and their version."""
        with self._lock:
            return self.version, list(self._topics.values())
