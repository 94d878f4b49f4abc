"""The process that forks the children of a run: it has everything imported, one thread, and no event loop.

A fork of the test process would copy locks that its other threads hold; a fresh interpreter for each child would cost
a run of a hundred children half a minute. The server ends with the process that started it, and its children with it:
the end of the control socket tells it.

Requests come as a head, three file descriptors and a body: fork (the child's end of its channel, the writing end of a
pipe for its process id and, once it was reaped, its wait status, and a file for what it says on stderr), or signal.
"""

import gc
import importlib
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

__all__ = ["FORK", "HEAD", "NUMBER", "SIGNAL", "Fork", "main"]

HEAD: Final = struct.Struct("!BiiI")
"""What is wanted, the process id and the signal's number (0 for a fork), and the length of the body."""

NUMBER: Final = struct.Struct("!i")
"""A process id, and later its wait status."""

FORK: Final = 1
SIGNAL: Final = 2

PRELOADED: Final = ("alkstore_contract_suite.child", "alkstore_contract_suite.rows")
"""What a child needs in any case, and should not have to import."""


@dataclass(frozen=True, slots=True)
class Fork:
    """The body of a fork.

    Attributes:
        path: The caller's ``sys.path``, so that what it could import a child can too.
        recipe: The pickled `factory.Remote`.
    """

    path: Sequence[str]
    recipe: bytes


def main(control: int) -> None:
    """Serve until the control socket ends; in a forked child, be that child."""
    # A Ctrl-C at the terminal goes to everybody; the test process decides what ends, and ends us by going away.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in PRELOADED:
        importlib.import_module(name)
    child = _Server(socket.socket(fileno=control)).serve()
    if child is not None:
        from alkstore_contract_suite.child import serve

        serve(*child)


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._reports: dict[int, int] = {}
        self._alarm, self._bell = socket.socketpair()
        self._alarm.setblocking(False)
        self._bell.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)

    def serve(self) -> tuple[int, bytes] | None:
        """Serve to the end; in a child, return at once with its channel and its recipe."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._control, selectors.EVENT_READ)
            ready.register(self._alarm, selectors.EVENT_READ)
            while True:
                found = {key.fileobj for key, _ in ready.select()}
                if self._alarm in found:
                    self._reap()
                if self._control not in found:
                    continue
                head, descriptors, *_ = socket.recv_fds(self._control, HEAD.size, 3)
                if not head:
                    self._end()
                child = self._answer(head, descriptors)
                if child is not None:
                    return child

    def _answer(self, head: bytes, descriptors: Sequence[int]) -> tuple[int, bytes] | None:
        head += self._exactly(HEAD.size - len(head))
        wanted, pid, number, length = HEAD.unpack(head)
        body = self._exactly(length)
        if wanted == FORK:
            return self._fork(pickle.loads(body), *descriptors)
        # A process that was reaped is not in the table any more: its number may be somebody else's by now.
        if pid in self._reports:
            os.kill(pid, number)
        return None

    def _exactly(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            part = self._control.recv(length - len(parts))
            if not part:
                self._end()
            parts += part
        return bytes(parts)

    def _fork(self, wanted: Fork, channel: int, report: int, stderr: int) -> tuple[int, bytes] | None:
        sys.path[:] = wanted.path
        with suppress(Exception):  # the child meets the same error, and can tell of it
            pickle.loads(wanted.recipe)
        # Objects that a collection in the child does not visit are pages that need not be copied.
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            self._become_child(report, stderr)
            return channel, wanted.recipe
        os.close(channel)
        os.close(stderr)
        self._reports[pid] = report
        _tell(report, pid)
        return None

    def _become_child(self, report: int, stderr: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(stderr, 2)
        for descriptor in (stderr, report, *self._reports.values()):
            os.close(descriptor)
        for end in (self._control, self._alarm, self._bell):
            end.close()

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            self._alarm.recv(4096)
        while self._reports:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            report = self._reports.pop(pid)
            _tell(report, status)
            os.close(report)

    def _end(self) -> NoReturn:
        for pid in self._reports:
            os.kill(pid, signal.SIGKILL)
        for pid in self._reports:
            os.waitpid(pid, 0)
        os._exit(0)


def _tell(report: int, number: int) -> None:
    with suppress(BrokenPipeError):  # whoever asked has gone, and nobody wants to know
        os.write(report, NUMBER.pack(number))
