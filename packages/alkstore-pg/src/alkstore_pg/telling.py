"""What a commit tells other stores: the texts, and how often one is told of the same thing.

A text is ``<kind><characters of name>:<name>``. The kinds are ``n`` (a notify: the caller's payload follows, nothing
else), ``q`` (a queue has a job), ``s`` (a stream has an event), ``l`` (a lock ends sooner), ``t`` (schedules changed) and
``p`` (a listener's probe). After the name of ``q s l t`` come, if anything, ``@<instant>`` (no sooner than that) and
``~<hex>`` (the store that told it, which needs no telling). The length comes first because a name may hold any
character. ``n`` is for listeners outside alkstore too and stays as it is.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from alkstore.engine import Topic, TopicKind
from alkstore.errors import AlkstoreError

__all__ = ["Debounce", "Woken", "read_text", "sooner", "text_of", "text_of_notify"]

LOGGER: Final = logging.getLogger("alkstore")

SPACING: Final = 0.004
"""Seconds after which the next commit tells again of what was told last: it costs no statement of its own."""

LONGEST_HOLD: Final = 0.005
"""Seconds for which a text is held back: each one holds a lock of the whole cluster through its commit."""

CROWD: Final = 0.003
"""Seconds that a commit of one row which tells takes when many stores tell: it waits for their commits, one after the other."""

SLOW_IN_A_ROW: Final = 3
"""Such commits one after another that it takes: a disk makes single ones."""

CROWDED_FOR: Final = 1.0
"""Seconds after such a commit in which a topic that was told lately is told by a statement of its own: nothing is synced for
that, so it holds the lock for a moment only."""

LATELY: Final = 0.1
"""Seconds since a topic was told, in a crowd. What is told more rarely than that is no part of the crowd."""

LAST_SEND: Final = 1.0
"""Seconds that a closing store takes to tell what it held back."""

_LETTERS: Final[Mapping[TopicKind, str]] = {
    TopicKind.CHANNEL: "n",
    TopicKind.QUEUE: "q",
    TopicKind.STREAM: "s",
    TopicKind.LOCK: "l",
    TopicKind.SCHEDULE: "t",
}
_KINDS: Final = {letter: kind for kind, letter in _LETTERS.items()}

_HEAD: Final = re.compile(r"([nqslt])([0-9]{1,4}):")
_TAIL: Final = re.compile(r"(?:@(-?[0-9]{1,18}))?(?:~[0-9a-f]+)?")


class Woken(NamedTuple):
    """Whom a write concerns, and from which instant on (None: now)."""

    topic: Topic
    at: int | None = None


def sooner(one: int | None, other: int | None) -> int | None:
    """Give the sooner of two instants, of which None is now."""
    return None if one is None or other is None else min(one, other)


def text_of(woken: Woken, suffix: str = "") -> str:
    """Write what is told of a commit; ``suffix`` names the store that tells it."""
    topic, at = woken
    when = "" if at is None else f"@{at}"
    return f"{_LETTERS[topic.kind]}{len(topic.name)}:{topic.name}{when}{suffix}"


def text_of_notify(channel: str, payload: bytes | None) -> str:
    """Write what is told of a notify."""
    return f"n{len(channel)}:{channel}{'' if payload is None else payload.decode()}"


def read_text(text: str) -> Woken | None:
    """Read a text; None if it is none of ours, which anybody may send on this channel."""
    head = _HEAD.match(text)
    if head is None:
        return None
    kind, end = _KINDS[head[1]], head.end() + int(head[2])
    if end > len(text):
        return None
    topic = Topic(kind, text[head.end() : end])
    if kind is TopicKind.CHANNEL:
        return Woken(topic)
    tail = _TAIL.fullmatch(text, end)
    if tail is None:
        return None
    return Woken(topic, None if tail[1] is None else int(tail[1]))


class Debounce:
    """Says which commits tell of themselves, and tells of the others a little later.

    State model. The first commit that concerns a topic tells of it at once and opens a window. What lands while it is
    open is owed, as the soonest of its instants; the first commit after SPACING carries it, or else a statement of its
    own at LONGEST_HOLD. It is owed only from its landing on: told before, it would have others look in vain. In a crowd of
    stores windows last LATELY: commits leave it to statements of their own, which come as soon as they would else.

    Args:
        send: Tells of all of these in one statement.
        spacing: SPACING, in seconds.
        longest_hold: LONGEST_HOLD, in seconds.
        lately: LATELY, in seconds.
        crowded_for: CROWDED_FOR, in seconds.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Woken]], Awaitable[None]],
        *,
        spacing: float = SPACING,
        longest_hold: float = LONGEST_HOLD,
        lately: float = LATELY,
        crowded_for: float = CROWDED_FOR,
    ) -> None:
        self._send = send
        self._spacing = spacing
        self._longest_hold = longest_hold
        self._lately = lately
        self._crowded_for = crowded_for
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._windows: dict[Topic, tuple[float, int | None]] = {}
        self._owed: dict[Topic, int | None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._slow = 0
        self._crowded_until = float("-inf")
        self._is_closed = False

    def took(self, seconds: float) -> None:
        """A commit of one row that told has taken so long."""
        self._slow = self._slow + 1 if seconds > CROWD else 0
        if self._slow >= SLOW_IN_A_ROW:
            self._crowded_until = self._time() + self._crowded_for

    def _window_at(self, now: float) -> float:
        """Give the seconds that windows last."""
        return self._lately if now < self._crowded_until else self._spacing

    def admit(self, woken: Woken, carried: list[Woken]) -> Woken | None:
        """Give what a commit is to tell, None if it is held back. What it tells for others is added to ``carried``.

        What is ready now is not held back for what was told of a later instant.
        """
        topic, at = woken
        now = self._time()
        window = self._windows.get(topic)
        if (
            window is not None
            and now - window[0] < self._window_at(now)
            and not (at is None and window[1] is not None)
        ):
            return None
        self._forget_old(now)
        if topic in self._owed:
            owed = Woken(topic, self._owed.pop(topic))
            carried.append(owed)
            at = sooner(at, owed.at)
            self._disarm_if_idle()
        self._open(topic, at, now)
        return Woken(topic, at)

    def may_wait(self, woken: Woken) -> bool:
        """Whether it was told so lately that a transaction need not tell of it, but may owe it once it has landed."""
        window, now = self._windows.get(woken.topic), self._time()
        if window is None or now - window[0] >= self._window_at(now):
            return False
        return woken.at is not None or window[1] is None

    def told(self, woken: Woken) -> None:
        """A transaction has landed that told of it."""
        topic, at = woken
        if topic in self._owed and sooner(at, self._owed[topic]) == at:
            del self._owed[topic]  # what it stands for landed before
            self._disarm_if_idle()
        now = self._time()
        self._forget_old(now)
        self._open(topic, at, now)

    def owe(self, woken: Woken) -> None:
        """Tell of it when its window ends."""
        if self._is_closed:
            return
        topic, at = woken
        owed = self._owed
        owed[topic] = sooner(at, owed[topic]) if topic in owed else at
        if self._timer is None and self._task is None:
            window = self._windows.get(topic)
            due = self._loop.time() if window is None else window[0] + self._longest_hold
            self._timer = self._loop.call_at(due, self._begin)

    async def flush(self) -> None:
        """Tell of everything that is owed, and return when that is over."""
        while self._owed or self._task is not None:
            self._begin()
            if self._task is not None:
                await asyncio.wait((self._task,))

    async def aclose(self) -> None:
        """Tell of what is owed, within LAST_SEND."""
        try:
            async with asyncio.timeout(LAST_SEND):
                await self.flush()
        except TimeoutError:
            LOGGER.warning("closing before %d wakes were told to other stores; they poll", len(self._owed))
        finally:
            self._is_closed = True
            self._owed.clear()
            self._disarm_if_idle()
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait((self._task,))

    # ------------------------------------------------------------ windows and the timer

    def _open(self, topic: Topic, at: int | None, now: float) -> None:
        # At the end of the order, also if an older one is there: `_forget_old` looks at the first alone.
        self._windows.pop(topic, None)
        self._windows[topic] = (now, at)

    def _forget_old(self, now: float) -> None:
        kept = max(self._longest_hold, self._window_at(now))
        for topic, (opened, _) in list(_first(self._windows)):
            if now - opened >= kept:
                del self._windows[topic]

    def _disarm_if_idle(self) -> None:
        if self._timer is not None and not self._owed:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None or not self._owed:
            return
        owed, self._owed = self._owed, {}
        now = self._loop.time()
        for topic, at in owed.items():
            self._open(topic, at, now)
        told = [Woken(topic, at) for topic, at in owed.items()]
        self._task = self._loop.create_task(self._tell(told))

    async def _tell(self, told: Sequence[Woken]) -> None:
        try:
            await self._send(told)
        except AlkstoreError as error:
            LOGGER.warning("could not tell other stores of %d wakes; they poll: %s", len(told), error)
        finally:
            self._task = None
            if self._owed and self._timer is None:
                self._timer = self._loop.call_later(self._longest_hold, self._begin)


def _first(
    windows: Mapping[Topic, tuple[float, int | None]],
) -> Sequence[tuple[Topic, tuple[float, int | None]]]:
    # Two go for one that comes, so that nothing piles up and no commit pays for a crowd.
    return [item for item, _ in zip(windows.items(), range(2), strict=False)]
