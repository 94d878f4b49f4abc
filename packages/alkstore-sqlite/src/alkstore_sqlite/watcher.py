"""The watcher: a thread that finds out what other connections committed, and reports what concerns this store.

State model. The thread has a connection of its own, which only reads. SQLite's ``data_version`` moves with every commit of
any other connection, of this process or another, through alkstore or not; when it has moved, the thread reads the marks of
the topics that somebody waits for, and tells the loop those that may be news. On Linux a hint of the file system says when
to look (`inotify.py`), and `pace.py` says how often.

A topic is put on the board before its waiter looks at storage. What is committed later moves ``data_version`` after that,
and a look copies the board only after it read the version: so nothing falls between the two. With an empty board the
thread soon blocks; it ends with the store, with the loop, or with the first error, which ends every wait.

It never opens or closes the database's files but through SQLite, for that would drop SQLite's locks on them.
"""

import asyncio
import json
import os
import selectors
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import Final, TypeAlias

from alkstore import statements
from alkstore.engine import TopicKind
from alkstore_sqlite.connection import Connection, bind
from alkstore_sqlite.errors import is_busy
from alkstore_sqlite.inotify import FileHint
from alkstore_sqlite.mark import Board, Report, Watched
from alkstore_sqlite.pace import SAFETY, Pace, Wait
from alkstore_sqlite.place import Place
from alkstore_sqlite.surroundings import connect_arguments, guard

__all__ = ["OpenHint", "Watcher"]

_SQL: Final = statements.load("alkstore_sqlite", "wake")

LINGER: Final = 1.0
"""Seconds from the last topic to the blocking: who claims again and again need not wake the thread each time."""

LOOP_CHECK: Final = 10.0
"""Seconds between looks of a blocked thread at whether its loop is still there."""

SHORT: Final = 0.0015
"""Seconds up to which a wait is a plain sleep: a selector rounds up to milliseconds."""

END_LIMIT: Final = 5.0
"""Seconds that a close waits for the thread: only a file system that hangs holds it up for longer."""

_PROBES: Final = {
    TopicKind.CHANNEL: _SQL["probe_channels"],
    TopicKind.STREAM: _SQL["probe_streams"],
    TopicKind.QUEUE: _SQL["probe_queues"],
    TopicKind.LOCK: _SQL["probe_locks"],
    TopicKind.SCHEDULE: _SQL["probe_schedules"],
}

OpenHint: TypeAlias = Callable[[str], FileHint | None]

Poll = selectors.SelectSelector if sys.platform == "win32" else selectors.PollSelector


class Watcher:
    """The loop's handle on the thread; made and used in the loop's thread.

    Args:
        place: The database file, where it was when the store opened it.
        board: What is waited for.
        report: Called in the loop with marks that may be news, at most one of a topic.
        died: Called in the loop when the thread has ended by an error.
        open_hint: Gives what hints at writes to a file, or None: then the file is polled.
    """

    def __init__(
        self,
        place: Place,
        board: Board,
        report: Callable[[Iterable[Report]], object],
        died: Callable[["Watcher", Exception], object],
        *,
        open_hint: OpenHint = FileHint.open,
    ) -> None:
        self._place = place
        self._board = board
        self._report = report
        self._died = died
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._lock = threading.Lock()
        self._news: dict[Watched, Report] = {}
        self._askers: list[asyncio.Future[None]] = []
        self._is_resting = False
        self._is_stopping = False
        self._is_poisoned = False
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._open_hint = open_hint
        self._thread = threading.Thread(target=self._run, name="alkstore-watcher", daemon=True)

    # ------------------------------------------------------------ in the loop

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: The system gives no more threads.
        """
        try:
            self._thread.start()
        except BaseException:
            self._close()
            raise

    def attend(self) -> None:
        """The board has a new topic."""
        if self._is_resting:
            self._ring()

    def poison(self) -> None:
        """Have the thread die as by an error that nobody expected."""
        self._is_poisoned = True
        self._ring()

    async def look(self) -> None:
        """Have the thread look, and return when what it found has been told; for tests, whose time stands still."""
        asker = self._loop.create_future()
        with self._lock:
            self._askers.append(asker)
        self._ring()
        await asyncio.wait((asker, self._ended), return_when=asyncio.FIRST_COMPLETED)

    async def aclose(self) -> None:
        """End the thread; no thread, connection or descriptor is left."""
        self._is_stopping = True
        self._ring()
        await asyncio.wait((self._ended,), timeout=END_LIMIT)

    def _ring(self) -> None:
        with self._lock, suppress(OSError):  # full: it has been rung often enough; closed: nobody hears it
            self._bell.send(b"\0")

    def _deliver(self) -> None:
        with self._lock:
            news, self._news = self._news, {}
        self._report(news.values())

    def _answer(self, askers: Sequence["asyncio.Future[None]"]) -> None:
        for asker in askers:
            if not asker.done():
                asker.set_result(None)

    def _end(self, error: Exception | None) -> None:
        self._thread.join(SAFETY)  # it has nothing left to do
        if not self._ended.done():
            self._ended.set_result(None)
        if error is not None and not self._is_stopping:
            self._died(self, error)

    # ------------------------------------------------------------ in the thread

    def _run(self) -> None:
        error: Exception | None = None
        try:
            _Round(self).run()
        except (
            Exception
        ) as caught:  # whatever it is: those who wait must hear that nothing will come any more
            error = caught
        self._close()
        with suppress(RuntimeError):  # the loop has been closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._end, error)

    def _take_askers(self) -> "Sequence[asyncio.Future[None]]":
        with self._lock:
            askers, self._askers = self._askers, []
        return askers

    def _close(self) -> None:
        with self._lock:
            self._bell.close()
            self._ear.close()


class _Round:
    """What the thread keeps while it goes round; nothing here is touched by another one."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._pace = Pace()
        self._version: int | None = None
        self._names = _Names(watcher._board)
        self._hint: FileHint | None = None
        self._empty_since = 0.0
        self._quiet, self._open = Poll(), Poll()

    def run(self) -> None:
        watcher = self._watcher
        with closing(_connect(watcher._place)) as connection, self._quiet, self._open:
            for selector in (self._quiet, self._open):
                selector.register(watcher._ear, selectors.EVENT_READ)
            self._hint = watcher._open_hint(f"{os.path.realpath(watcher._place.path)}-wal")
            try:
                if self._hint is not None:
                    self._open.register(self._hint, selectors.EVENT_READ)
                self._go_round(connection)
            finally:
                if self._hint is not None:
                    self._hint.close()

    def _go_round(self, connection: Connection) -> None:
        self._look(connection)  # it makes the -wal file where there is none, which hints are about
        checked = time.monotonic() - SAFETY
        while not self._is_over():
            now = time.monotonic()
            if now - checked >= SAFETY:
                checked = now
                self._check(connection)
            wait = self._pace.next(now)
            has_hint = self._pause(wait)
            if self._is_over():
                return
            askers = self._watcher._take_askers()  # only who asked before the look is answered by it
            if self._look(connection) and wait.is_safety and not has_hint and not askers:
                self._doubt_hints()
            if askers:
                self._watcher._loop.call_soon_threadsafe(self._watcher._answer, askers)
            if self._rest(time.monotonic()):
                self._pace.note_hint()  # there may have been some in the meantime

    def _is_over(self) -> bool:
        if self._watcher._is_poisoned:
            raise RuntimeError("it was told to die")
        return self._watcher._is_stopping

    def _check(self, connection: Connection) -> None:
        """Once in a while: is the file still the one that was opened, the loop still there, the hints still about it?"""
        connection.check_place()
        if self._watcher._loop.is_closed():
            self._watcher._is_stopping = True
        if self._hint is not None and self._hint.follow():
            self._pace.note_hint()  # what was written before was not hinted at
        self._pace.has_hints = self._hint is not None and self._hint.is_following

    def _pause(self, wait: Wait) -> bool:
        """Wait; True if a hint came."""
        if wait.seconds < SHORT:
            time.sleep(wait.seconds)
        else:
            self._listen(self._open if wait.is_open else self._quiet, wait.seconds)
        if not (wait.is_open and self._has_hint()):
            return False
        self._pace.note_hint()
        return True

    def _listen(self, selector: selectors.BaseSelector, seconds: float) -> None:
        ear = self._watcher._ear
        if any(key.fileobj is ear for key, _ in selector.select(seconds)):
            with suppress(BlockingIOError):
                ear.recv(1_024)

    def _has_hint(self) -> bool:
        hint = self._hint
        if hint is None or not hint.drain():
            return False
        self._pace.has_hints = hint.is_following
        return True

    def _doubt_hints(self) -> None:
        """A movement was found without a hint. Hints come before what they hint at, so this one never will."""
        hint = self._hint
        if hint is None or self._has_hint() or hint.follow():
            return
        self._open.unregister(hint)
        hint.close()
        self._hint = None
        self._pace.has_hints = False

    def _rest(self, now: float) -> bool:
        """Block while nobody has waited for anything for a while; True if it did."""
        watcher = self._watcher
        if len(watcher._board):
            self._empty_since = 0.0
            return False
        self._empty_since = self._empty_since or now
        if now - self._empty_since < LINGER:
            return False
        watcher._is_resting = (
            True  # before the board is looked at again: who adds to it looks at this afterwards
        )
        while not (len(watcher._board) or self._is_over() or watcher._loop.is_closed()):
            self._listen(self._quiet, LOOP_CHECK)
        watcher._is_resting = False
        return True

    def _look(self, connection: Connection) -> bool:
        """Look once; True if something has moved."""
        begun = time.thread_time()
        try:
            ((version,),) = connection.execute(_SQL["version"]).fetchall()
            if version == self._version:
                self._pace.note_still()
                return False
            reports = self._probe(connection)
        except sqlite3.Error as error:
            if not is_busy(error):
                raise
            self._pace.note_busy()  # the version stays: this movement has not been looked at yet
            return False
        self._version = version
        self._tell(reports)
        self._pace.note_moved(time.monotonic(), time.thread_time() - begun, concerns=bool(reports))
        return True

    def _probe(self, connection: Connection) -> list[Report]:
        reports = []
        for sql, names, topics in self._names.by_probe():
            # All rows are taken, always: an open statement would hold an old state of the file and grow its log.
            ((marks,),) = connection.execute(sql, bind((names,))).fetchall()
            read_at = time.monotonic()
            for place, *mark in json.loads(marks):
                watched = topics[place]
                if watched.is_worth(tuple(mark)):
                    reports.append(Report(watched, tuple(mark), read_at))
        return reports

    def _tell(self, reports: Sequence[Report]) -> None:
        """Have the loop called once, however much comes before it gets round to it."""
        if not reports:
            return
        watcher = self._watcher
        with watcher._lock:
            is_called = bool(watcher._news)
            watcher._news.update((report.watched, report) for report in reports)
        if not is_called:
            watcher._loop.call_soon_threadsafe(watcher._deliver)
        for report in reports:
            report.watched.reported = report.mark


def _connect(place: Place) -> Connection:
    place.check()  # opened, another file there would have the -wal file of the store's own played into it
    database, uri = connect_arguments(place.path, create=False)
    connection = sqlite3.connect(database, uri=uri, factory=Connection, isolation_level=None, timeout=0)
    try:
        guard(connection)
        connection.place = place
        connection.run_sql(_SQL["read_only"])
    except BaseException:
        connection.close()
        raise
    return connection


class _Names:
    """The names on the board as the probes take them, made anew only when they have changed."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._version = -1
        self._probes: list[tuple[str, str, list[Watched]]] = []

    def by_probe(self) -> Iterable[tuple[str, str, list[Watched]]]:
        """Give each probe's statement, its parameter, and the topics in the order of the names in it."""
        if self._board.version != self._version:
            self._version, topics = self._board.copy()
            by_kind: dict[TopicKind, list[Watched]] = {}
            for watched in topics:
                by_kind.setdefault(watched.topic.kind, []).append(watched)
            self._probes = [
                (_PROBES[kind], json.dumps([watched.topic.name for watched in those]), those)
                for kind, those in by_kind.items()
            ]
        return self._probes
