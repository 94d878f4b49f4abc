"""Linux's inotify on one file: a hint that somebody wrote to it, for a thread that waits. Never opens the file.

A hint comes before what was written can be seen, and may come for nothing.
"""

import ctypes
import os
import struct
import sys
from typing import Final, Self

__all__ = ["FileHint"]

MODIFIED: Final = 0x2
ATTRIBUTES: Final = 0x4
MOVED: Final = 0x800
DELETED: Final = 0x400
"""IN_MODIFY, IN_ATTRIB (among them the loss of a name), IN_MOVE_SELF and IN_DELETE_SELF of <sys/inotify.h>."""

EVENT: Final = struct.Struct("iIII")
"""struct inotify_event of a file: watch, mask, cookie, and a length of 0, for only folders name who is meant."""

EVENTS: Final = EVENT.size * 1_024
"""Bytes of events taken at a time. The kernel folds equal ones that follow each other, so one is the rule."""


class FileHint:
    """One file that is looked after while it is there. Made by `open`; for one thread."""

    def __init__(self, library: ctypes.CDLL, descriptor: int, path: str) -> None:
        self._library = library
        self._descriptor = descriptor
        self._path = os.fsencode(path)
        self._watch = -1
        self._file: tuple[int, int] | None = None

    @classmethod
    def open(cls, path: str) -> Self | None:
        """Begin; None where there is no inotify, or no more of it for this user."""
        if sys.platform != "linux":
            return None
        try:
            library = ctypes.CDLL(None, use_errno=True)
            descriptor = int(library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except (OSError, AttributeError):  # a C library that cannot be asked, or one without it
            return None
        return cls(library, descriptor, path) if descriptor >= 0 else None

    @property
    def is_following(self) -> bool:
        """Whether there is a file from which hints come."""
        return self._file is not None

    def fileno(self) -> int:
        return self._descriptor

    def follow(self) -> bool:
        """Look after whatever stands at the path now; True if that has just begun, and hints may have been missed."""
        found = self._found()
        if found == self._file:
            return False
        self._leave()
        if found is not None:
            mask = MODIFIED | ATTRIBUTES | MOVED | DELETED
            self._watch = int(self._library.inotify_add_watch(self._descriptor, self._path, mask))
            # Had it been replaced in between, the next call would find another file than this one.
            self._file = found if self._watch >= 0 else None
        return self.is_following

    def drain(self) -> bool:
        """Take the hints that came; True if there were any."""
        try:
            events = os.read(self._descriptor, EVENTS)
        except BlockingIOError:
            return False
        for watch, mask, _, _ in EVENT.iter_unpack(events):
            if mask == MODIFIED or watch not in (self._watch, -1):
                continue  # the end of an earlier watch is no news
            if mask == ATTRIBUTES and self._found() == self._file:
                continue  # as root, SQLite gives the -wal file its owner whenever another process opens it
            self._file = None  # removed, moved, or hints were dropped: `follow` must look again
        return True

    def close(self) -> None:
        """Give the descriptor back. Once."""
        os.close(self._descriptor)

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _leave(self) -> None:
        if self._watch >= 0:
            self._library.inotify_rm_watch(self._descriptor, self._watch)  # harmless for one that is gone
        self._watch, self._file = -1, None
