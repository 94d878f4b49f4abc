"""A throw-away Redis server for the column and the tests; it opens no port, and ends with the process that started it."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from redis import Redis
from redis.exceptions import RedisError

__all__ = ["Server", "available"]

PATIENCE: Final = 10.0
"""Seconds that a server may take to start or to end."""
LOOK: Final = 0.005
"""Seconds between two looks at whether it has."""
MEMORY: Final = "/dev/shm"
"""Where Linux keeps files in memory: the server syncs each write, and there a sync costs nothing."""
# Its parent waits for a line; the end of who could write one means that a process was killed, which cleans nothing up.
KEEPER: Final = (
    "/bin/sh",
    "-c",
    'folder=$1; shift; "$@" & read _ || ended=1; kill -9 $!; wait; [ -z "$ended" ] || rm -rf "$folder"',
    "sh",
)


def _program() -> str | None:
    return shutil.which("redis-server") or shutil.which("valkey-server")


def available() -> str | None:
    """None if there is a server on this machine; else what to install."""
    return None if _program() else "no redis-server on this machine: install the package redis-server"


class Server:
    """A server in a folder of its own, for the length of a block.

    Attributes:
        url: What a store is opened with.
        redis: A client past alkstore.
    """

    def __init__(self, *settings: str) -> None:
        self._folder = tempfile.mkdtemp(
            prefix="alkstore-redis-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None
        )
        self.url = f"unix://{self._folder}/socket"
        self.redis = Redis.from_url(self.url)
        self._command = [
            *KEEPER, self._folder, str(_program()), "--dir", self._folder, "--unixsocket", f"{self._folder}/socket", "--port", "0",
            "--appendonly", "yes", "--appendfsync", "always", *settings,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start on what is in the folder; return when it lets clients in.

        Raises:
            RuntimeError: It does not; the text is its log.
        """
        log = Path(self._folder, "log")
        with log.open("ab") as file:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=file, stderr=file)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                self.redis.ping()
            except RedisError:
                time.sleep(LOOK)
            else:
                return
        raise RuntimeError(log.read_text("utf-8"))

    def stop(self) -> None:
        """End the server as a crash does, and keep its folder."""
        self.redis.close()
        if self._process is not None:
            self._process.communicate(b"\n", PATIENCE)
            self._process = None
