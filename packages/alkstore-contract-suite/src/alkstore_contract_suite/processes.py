"""The test process's end of the fork server: asks for children and for signals to them."""

import os
import pickle
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from signal import Signals
from typing import IO, Final

from alkstore_contract_suite.factory import Remote
from alkstore_contract_suite.fork_server import FORK, HEAD, SIGNAL, Fork

__all__ = ["LIMIT", "Forked", "ProcessDied", "Processes"]

LIMIT: Final = 10.0
"""Seconds of real time that a child may take to be forked, to open, to look at the clock, to end."""


class ProcessDied(Exception):
    """A child process ended without having been told to, or did not do in time what it was told."""


@dataclass(frozen=True, slots=True)
class Forked:
    """The ends of what was handed to a child.

    Attributes:
        channel: Where it takes messages and answers.
        report: Where the server writes its process id and, once it was reaped, its wait status.
        stderr: What it says.
    """

    channel: socket.socket
    report: int
    stderr: IO[bytes]


class Processes:
    """The fork server of a run: started when first wanted, stopped at its end.

    It belongs to no event loop. Should this process end without `close`, the server and every child end too: their
    sockets tell them.
    """

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Let the server import what children need, while the caller does something else."""
        if self._server is not None:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            begin = (
                f"import sys; sys.path[:] = {sys.path!r}; "
                f"from alkstore_contract_suite.fork_server import main; main({theirs.fileno()})"
            )
            self._server = subprocess.Popen(
                [sys.executable, "-c", begin],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        ours.settimeout(LIMIT)
        self._control = ours

    def fork(self, remote: Remote) -> Forked:
        """Ask for a child. Cost: two messages; the server's first one waits for its imports.

        Raises:
            ProcessDied: The server has ended.
        """
        self.start()
        body = pickle.dumps(Fork([*sys.path], pickle.dumps(remote)))
        ours, theirs = socket.socketpair()
        report, reporting = os.pipe()
        stderr = tempfile.TemporaryFile()  # noqa: SIM115  # it stays open as long as the child
        try:
            self._send(FORK, 0, 0, body, [theirs.fileno(), reporting, stderr.fileno()])
        except BaseException:
            ours.close()
            os.close(report)
            stderr.close()
            raise
        finally:
            theirs.close()
            os.close(reporting)
        return Forked(ours, report, stderr)

    def signal(self, pid: int, number: Signals) -> None:
        """Send a child a signal, unless it was reaped already.

        Raises:
            ProcessDied: The server has ended.
        """
        self._send(SIGNAL, pid, number, b"", [])

    def close(self) -> None:
        """End the server and with it every child."""
        if self._server is None or self._control is None:
            return
        self._control.close()
        try:
            self._server.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server = self._control = None

    def _send(self, wanted: int, pid: int, number: int, body: bytes, descriptors: list[int]) -> None:
        assert self._control is not None
        head = HEAD.pack(wanted, pid, number, len(body))
        try:
            # The descriptors ride on the first byte, so that a short write cannot part them from their head.
            sent = socket.send_fds(self._control, [head], descriptors) if descriptors else 0
            self._control.sendall(head[sent:] + body)
        except OSError as error:
            raise ProcessDied(f"the fork server of this run has ended: {error}") from error
