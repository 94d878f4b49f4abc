"""A server that a test process starts for itself: in a folder of its own, and gone when that process is, however it ends."""

import os
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

__all__ = ["OwnServer"]

LOOK: Final = 0.005
"""Seconds between two looks at whether it has."""

MEMORY: Final = "/dev/shm"
"""Where Linux keeps files in memory: a server syncs each write, and there a sync costs nothing."""

# Its parent waits for a line; the end of who could write one means that a process was killed, which cleans nothing up.
# Nobody but the server has descriptor 3: when that is at its end, so is the server.
KEEPER: Final = (
    "/bin/sh",
    "-c",
    'folder=$1; shift; "$@" 3>&1 >&2 & exec >&2; '
    'read _ || ended=1; kill -9 $!; wait; [ -z "$ended" ] || rm -rf "$folder"',
    "sh",
)

TOLD: Final = 1_000
"""Characters of a log's end that an error shows."""


class OwnServer(ABC):
    """A server for the length of a block. It is to open no port: two runs on one machine must not meet.

    Args:
        name: Begins the folder's name.

    Attributes:
        folder: Where everything of it is; short enough for a socket.
        patience: Seconds that it may take to start or to end.
    """

    patience: ClassVar[float] = 10.0

    def __init__(self, name: str) -> None:
        memory = MEMORY if os.access(MEMORY, os.W_OK | os.X_OK) else None
        self.folder: Final = Path(tempfile.mkdtemp(prefix=f"alkstore-{name}-", dir=memory))
        self._process: subprocess.Popen[bytes] | None = None

    # ---------------------------------------------------------------- what an author supplies

    @property
    @abstractmethod
    def url(self) -> str:
        """What stores are opened with, in whatever process."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Give the program and its arguments; it stays in the foreground, and keeps its data in `folder` over restarts.

        It leaves descriptor 3 as it finds it: by its end one sees that the server has ended.
        """

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it lets clients in; False, and no error, while nobody answers."""

    @abstractmethod
    def leave(self) -> None:
        """Let go of one's own clients: the server is about to be stopped."""

    # ---------------------------------------------------------------- its life

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def start(self) -> None:
        """Start on what is in the folder; return when it lets clients in.

        Raises:
            RuntimeError: It does not; the text is its log.
        """
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*KEEPER, str(self.folder), *self.command()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a signal to the whole group would end the keeper before it has cleaned up
            )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        until = time.monotonic() + self.patience
        while time.monotonic() < until:
            if self._lets_in():
                return
            if self._has_ended():
                raise RuntimeError(f"server ended before it let clients in; its log: {self._told()}")
            time.sleep(LOOK)
        raise RuntimeError(
            f"server did not let clients in within {self.patience:g} s; its log: {self._told()}"
        )

    def revive(self) -> str | None:
        """Start it again if it has ended, and nobody stopped it: gives the end of its log, None if it is there.

        Raises:
            RuntimeError: As `start`.
        """
        if not self._has_ended():
            return None
        told = self._told()
        self.stop()
        self.start()
        return told

    def stop(self) -> None:
        """End the server as a crash does, and keep its folder."""
        self.leave()
        if self._process is not None:
            self._process.communicate(b"\n", self.patience)
            self._process = None

    def _lets_in(self) -> bool:
        try:
            return self.is_ready()
        except Exception as error:  # an author's driver, which says in its own way that nobody answers
            who = type(self).__name__
            raise RuntimeError(
                f"{who}.is_ready raised {error!r}; while nobody answers it is to give False"
            ) from error

    def _has_ended(self) -> bool:
        if self._process is None or self._process.stdout is None:
            return False
        try:
            return os.read(self._process.stdout.fileno(), 1) == b""
        except BlockingIOError:
            return False

    def _told(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace").strip()[-TOLD:]

    def _remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
