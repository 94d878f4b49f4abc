"""Wakes: what a commit of this store wakes at once, and what others commit wakes when the watcher has seen it."""

import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from alkstore import statements
from alkstore.clock import Clock
from alkstore.engine import NewWake, Topic, TopicKind, Watch
from alkstore.errors import DatabaseError, show
from alkstore.watch import Hub
from alkstore_sqlite.connection import Change, Statement, Steps, Tells, Woken
from alkstore_sqlite.errors import translate, translated
from alkstore_sqlite.inotify import FileHint
from alkstore_sqlite.mark import Board, Report, Watched
from alkstore_sqlite.place import Place
from alkstore_sqlite.watcher import OpenHint, Watcher

__all__ = ["Wakes", "notify", "read_channel"]

_SQL: Final = statements.load("alkstore_sqlite", "wake")

KEPT_NOTIFICATIONS: Final = 10_000
"""Rows that stay for those who listen without alkstore (DUR-13)."""


def notify(wakes: Sequence[NewWake], now: int) -> Steps[Change[None]]:
    """Count each channel up, and leave rows for those who listen without alkstore."""
    woken: list[Woken] = []
    for channel, count in Counter(wake.channel for wake in wakes).items():
        ((was_there,),) = yield Statement(_SQL["count"], (channel, count), tells=Tells.COUNT)
        if not was_there:
            yield Statement(_SQL["begin"], (channel, count))
        ((mark,),) = yield Statement(_SQL["wakes"], (channel,))
        woken.append(Woken(Topic(TopicKind.CHANNEL, channel), mark))
    rows = [(channel, payload if payload is None else payload.decode(), now) for channel, payload in wakes]
    if rows:
        yield Statement(_SQL["note"], rows, is_many=True)
        yield Statement(_SQL["trim"], (KEPT_NOTIFICATIONS,))
    return Change(None, woken)


def read_channel(channel: str) -> Steps[int]:
    """Give the number of notifies that a channel ever had."""
    rows = yield Statement(_SQL["wakes"], (channel,))
    return rows[0][0] if rows else 0


class Wakes:
    """Everything that is waited for in one store, in its event loop.

    Args:
        place: The database file, where it was when the store opened it.
        clock: What the waits' instants mean.
        baseline: Reads a channel's counter on a connection that reads.
        open_hint: As `Watcher` has it.
    """

    def __init__(
        self,
        place: Place,
        clock: Clock,
        baseline: Callable[[str], Awaitable[int]],
        *,
        open_hint: OpenHint = FileHint.open,
    ) -> None:
        self._place = place
        self._path = place.path
        self._baseline = baseline
        self._open_hint = open_hint
        self.board: Final = Board()
        """Who waits for what. While it is empty, nobody need be told of a claim or a commit."""
        self._watcher: Watcher | None = None
        self.heard = 0
        """Topics that were woken by what the watcher found."""
        self.hub: Final = Hub(clock, self.board.forget)

    def landed(self, woken: Iterable[Woken]) -> None:
        """Wake whom a commit of this store concerns."""
        if self.board.is_empty:
            return
        for topic, mark in woken:
            watched = self.board.get(topic)
            if watched is not None and (mark is None or watched.hear((mark,))):
                self.hub.wake(topic)

    async def watch(self, topic: Topic) -> Watch:
        """Hear of a topic: every commit after this returned, no notify that was acknowledged before.

        Raises:
            Closed: The store is closed.
            DatabaseError: Nothing can be heard, and why.

        Cost: a read for a channel, nothing for anything else.
        """
        counted = await self._baseline(topic.name) if topic.kind is TopicKind.CHANNEL else None
        # Before the new one is there: those who watch already may not have heard of it yet, and it must not hear of it.
        if (
            counted is not None
            and (watched := self.board.get(topic)) is not None
            and watched.hear((counted,))
        ):
            self.hub.wake(topic)
        watch = self.hub.watch(topic)
        if topic.kind is TopicKind.CLOCK:
            return watch
        watched = self.board.add(topic)
        if counted is not None:
            watched.hear((counted,))
        try:
            self._attend()
        except BaseException:
            watch.close()
            raise
        return watch

    def claim_begins(self, queue: str) -> None:
        """A claim of this store's was handed to the writer."""
        watched = self.board.get(Topic(TopicKind.QUEUE, queue))
        if watched is not None:
            watched.begin_claim()

    def claim_ended(self, queue: str, began: float | None, next_at: int | None, short: bool) -> None:
        """It has ended: ``began`` is a time.monotonic() at which it had the write lock, None if it failed.

        The later in its hold of the lock, the better: what the watcher read before then is no news to it.
        """
        topic = Topic(TopicKind.QUEUE, queue)
        watched = self.board.get(topic)
        if watched is not None and watched.end_claim(began, next_at if short else None):
            self.hub.wake(topic)

    async def aclose(self) -> None:
        """End every watch with CLOSED, and the watcher."""
        self.hub.aclose()
        if self._watcher is not None:
            await self._watcher.aclose()

    async def look(self) -> bool:
        """Have the watcher look now; True if somebody was woken by what it found. For tests, whose time stands still."""
        heard = self.heard
        if self._watcher is not None and len(self.board):
            await self._watcher.look()
        return self.heard != heard

    def kill_watcher(self) -> None:
        """Have the watcher die as by an error that nobody expected: a fault for the contract's column."""
        if self._watcher is not None:
            self._watcher.poison()

    def _attend(self) -> None:
        if self._watcher is None:
            self._watcher = self._start()
        self._watcher.attend()

    def _start(self) -> Watcher:
        try:
            with translated(self._path):
                watcher = Watcher(
                    self._place, self.board, self._reported, self._died, open_hint=self._open_hint
                )
                watcher.start()
        except RuntimeError as error:
            raise DatabaseError(
                f"watcher of database file {show(self._path)} cannot start ({error}); end other threads, and try again"
            ) from error
        return watcher

    def _reported(self, reports: Iterable[Report]) -> None:
        for report in reports:
            watched = report.watched
            if self.board.get(watched.topic) is watched and _is_news(watched, report):
                self.heard += 1
                self.hub.wake(watched.topic)

    def _died(self, watcher: Watcher, error: Exception) -> None:
        if watcher is self._watcher:
            self._watcher = None  # whoever waits next starts another
        self.hub.fail(_told(error, self._path))


def _is_news(watched: Watched, report: Report) -> bool:
    return watched.judge(report) if watched.topic.kind is TopicKind.QUEUE else watched.hear(report.mark)


def _told(error: Exception, path: str) -> DatabaseError:
    if isinstance(error, DatabaseError):
        return error
    if isinstance(error, (sqlite3.Error, OSError)):
        ours = translate(error, path)
    else:
        ours = DatabaseError(
            f"watcher of database file {show(path)} died of {show(error)}; what waits next starts another"
        )
    ours.__cause__ = error
    return ours
