"""Ends the servers that a test process started, and removes their folders, once that process is gone.

A process that is killed with SIGKILL cleans nothing up. So the first server of a process starts one more
process beside it: this file, run as a script. It is told every pid and folder over its standard input, and
acts when that input ends. Somebody else may hold the input open (a child made by fork), so it also looks, once
a second, whether its parent is still the one that started it; a death signal of the kernel's would not do:
that is sent when the *thread* ends that made the child, and is forgotten when the child changes its user.
"""

import atexit
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Final

__all__ = ["forget", "hold", "keep", "release"]

LOOK: Final = 1.0
"""Seconds between two looks at who the parent is."""

PATIENCE: Final = 3.0
"""Seconds that a server has to end by itself, before it is killed."""


class _Keeper:
    def __init__(self) -> None:
        self.owner = os.getpid()
        # -I: this folder has a queue.py, which must not become the standard library's.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(self.owner)],
            stdin=subprocess.PIPE,
            # Whoever reads this process's output to its end must not wait for the keeper too.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            # Ctrl-C goes to every process of the terminal's group.
            start_new_session=True,
        )
        atexit.register(self.close)

    def tell(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        if os.getpid() == self.owner:
            self._process.communicate()


_lock: Final = threading.Lock()
_keeper: _Keeper | None = None


def _tell(*words: object) -> None:
    global _keeper
    with _lock:
        if _keeper is None or _keeper.owner != os.getpid():
            _keeper = _Keeper()
        _keeper.tell(*words)


def hold(pid: int, number: signal.Signals) -> None:
    """Have a process ended by this signal when the calling process is gone."""
    _tell("hold", pid, int(number))


def release(pid: int) -> None:
    """Say that a process has ended: its pid may soon be somebody else's."""
    _tell("release", pid)


def keep(folder: str) -> None:
    """Have a folder removed when the calling process is gone."""
    _tell("keep", folder)


def forget(folder: str) -> None:
    """Remove a folder now."""
    shutil.rmtree(folder, ignore_errors=True)
    _tell("forget", folder)


# ---------------------------------------------------------------- the process beside


def _lines(parent: int) -> list[str]:
    """Every line that was told, once there is nobody left to tell more."""
    told = b""
    while os.getppid() == parent:
        if select.select([0], [], [], LOOK)[0]:
            data = os.read(0, 65_536)
            if not data:
                break
            told += data
    return told.decode().splitlines()


def _has_ended(pid: int) -> bool:
    """Whether a process has ended within our patience."""
    if sys.platform == "linux":
        # In a container it may stay a zombie for long, which signals still find.
        with open(os.pidfd_open(pid), "rb") as watched:
            return bool(select.select([watched], [], [], PATIENCE)[0])
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        os.kill(pid, 0)
        time.sleep(0.02)
    return False


def _end(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        if not _has_ended(pid):
            os.kill(pid, signal.SIGKILL)


def _main(parent: int) -> None:
    pids: dict[int, int] = {}
    folders: dict[str, None] = {}
    for line in _lines(parent):
        word, _, rest = line.partition(" ")
        if word == "hold":
            pid, number = map(int, rest.split())
            pids[pid] = number
        elif word == "release":
            pids.pop(int(rest), None)
        elif word == "keep":
            folders[rest] = None
        else:
            folders.pop(rest, None)
    for pid in pids:
        _end(pid, pids[pid])
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
