"""One throw-away PostgreSQL server process, its folder, and what it is told to start, stop and start again."""

import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, Self, TypeAlias

from alkstore_pg import contract_binaries as programs
from alkstore_pg import contract_keeper as keeper
from alkstore_pg.contract_dsn import Address

__all__ = ["LOOK", "PATIENCE", "SUPERUSER", "TRIES", "Postmaster", "StopMode", "free_port", "run", "template"]

StopMode: TypeAlias = Literal["immediate", "fast"]

SUPERUSER: Final = "postgres"

PATIENCE: Final = 30.0
"""Seconds that a server has to start or to stop; it takes less than one, but machines are busy."""

LOOK: Final = 0.005
"""Seconds between two looks at the file in which a server says that it is ready."""

PORTS: Final = range(15_000, 32_000)
"""Below the ports that Linux gives to outgoing connections. On one of those, a client that calls while the
server is down can be connected to itself, and the server finds its port taken when it comes back."""

TRIES: Final = 20
"""Ports to try: somebody may take one between our look at it and the program's start."""

SOCKET_PATH: Final = 100
"""Bytes that the path of a Unix socket may have; the systems' limits are 108 and 104."""

SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "off",
    "full_page_writes": "off",
    # An answer must still mean that the commit was handed to the operating system.
    "synchronous_commit": "on",
    "max_connections": "200",
    "max_prepared_transactions": "10",
    "shared_buffers": "128MB",
    "autovacuum": "on",
    "wal_level": "minimal",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "logging_collector": "off",
    "listen_addresses": "127.0.0.1",
}

_SIGNALS: Final[Mapping[StopMode, signal.Signals]] = {"immediate": signal.SIGQUIT, "fast": signal.SIGINT}


def run(*command: str | Path, data: bytes = b"") -> bytes:
    """Run a program of the server's to its end, as the server's user.

    Raises:
        RuntimeError: It failed; the text is what it said.
    """
    done = subprocess.run(
        command,
        input=data,
        capture_output=True,
        cwd="/",
        env=programs.surroundings(),
        check=False,
        **programs.account().process(),
    )
    if done.returncode != 0:
        raise RuntimeError(f"{Path(command[0]).name} failed: {done.stderr.decode(errors='replace').strip()}")
    return bytes(done.stdout)


def free_port() -> int:
    """A loopback port that nobody listens on at this moment: somebody may in the next."""
    # Not the module's generator: tests seed that one, and two processes would try the same ports.
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as attempt, suppress(OSError):
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            attempt.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"every port from {PORTS[0]} to {PORTS[-1]} is taken")


@lru_cache(maxsize=8)
def template(folder: Path) -> Path:
    """A fresh data folder of these programs, made once a process and copied from then on."""
    data = programs.room("alkstore-new-") / "data"
    run(
        folder / "initdb",
        f"--pgdata={data}",
        f"--username={SUPERUSER}",
        "--auth=trust",
        "--encoding=UTF8",
        "--locale=C",
        "--no-sync",
        "--no-instructions",
    )
    return data


def _setting(name: str, value: str) -> str:
    escaped = value.replace("'", "''")
    return f"{name} = '{escaped}'\n"


class Postmaster:
    """A server process with its folder; ``create`` and ``follow`` make one, and neither starts it."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder
        self._folder = programs.room("alkstore-pg-")
        self._data = self._folder / "data"
        self._sockets = self._folder
        if len(str(self._folder / ".s.PGSQL.00000").encode()) > SOCKET_PATH:
            self._sockets = Path(tempfile.mkdtemp(prefix="alkstore-", dir="/tmp"))
            keeper.keep(str(self._sockets))
            programs.account().owns(self._sockets).chmod(0o755)
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def create(cls, folder: Path, settings: Mapping[str, str]) -> Self:
        """An empty server of these programs."""
        postmaster = cls(folder)
        run("cp", "-a", template(folder), postmaster._data)
        lines = {**SETTINGS, **settings}
        if lines["wal_level"] == "minimal":
            lines.setdefault("max_wal_senders", "0")
        postmaster._configure(lines)
        return postmaster

    @classmethod
    def follow(cls, folder: Path, dsn: str, backup: Path) -> Self:
        """A standby of the server that a DSN names, from a copy that ``pg_basebackup`` makes."""
        postmaster = cls(folder)
        run(backup, "-D", postmaster._data, "-d", dsn, "-X", "stream", "-c", "fast", "-R", "--no-sync")
        postmaster._configure({})
        return postmaster

    def _configure(self, settings: Mapping[str, str]) -> None:
        # In the file and not on the command line, which would be above ALTER SYSTEM.
        lines = {**settings, "unix_socket_directories": str(self._sockets)}
        if not _has_shared_memory():
            lines.setdefault("dynamic_shared_memory_type", "mmap")
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(_setting(name, value) for name, value in lines.items())

    @property
    def socket(self) -> Address:
        return Address(str(self._sockets), self._port)

    @property
    def tcp(self) -> Address:
        return Address("127.0.0.1", self._port)

    def log(self) -> str:
        """Everything that the server wrote so far."""
        with suppress(FileNotFoundError):
            return (self._folder / "log").read_text(errors="replace")
        return ""

    def start(self) -> None:
        """Start the process and wait until it lets clients in; on its old port, if it had one.

        Raises:
            RuntimeError: It ended, or did not become ready; the text is the end of its log.
        """
        for _ in range(TRIES):
            port = self._port or free_port()
            self._launch(port)
            if self._became_ready():
                self._port = port
                return
            self.stop("immediate")
            if self._port or "could not bind" not in self.log():
                break
        raise RuntimeError(f"postgresql in {self.programs} does not start: {self.log()[-2000:]}")

    def _launch(self, port: int) -> None:
        if self._process is not None:
            raise RuntimeError("this server runs: stop it before it is started again")
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.programs / "postgres", "-D", self._data, "-p", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=programs.surroundings(),
                # Ctrl-C goes to every process of the terminal's group.
                start_new_session=True,
                **programs.account().process(),
            )
        keeper.hold(self._process.pid, signal.SIGQUIT)

    def _became_ready(self) -> bool:
        assert self._process is not None
        until = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < until:
            with suppress(FileNotFoundError):
                lines = (self._data / "postmaster.pid").read_text().splitlines()
                # A server that was stopped at once left its file behind, and that one says ready too.
                if lines[:1] == [str(self._process.pid)] and lines[7:8] == ["ready   "]:
                    return True
            time.sleep(LOOK)
        return False

    def stop(self, mode: StopMode) -> None:
        """End the process and keep its data; nothing if it does not run."""
        if self._process is None:
            return
        self._process.send_signal(_SIGNALS[mode])
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        keeper.release(self._process.pid)
        self._process = None

    def close(self) -> None:
        """End the process and remove its data."""
        self.stop("immediate")
        for folder in {self._folder, self._sockets}:
            keeper.forget(str(folder))


@lru_cache(maxsize=1)
def _has_shared_memory() -> bool:
    """Whether parallel queries find room: a container's 64 MiB end in "could not resize shared memory segment"."""
    with suppress(OSError):
        return shutil.disk_usage("/dev/shm").free >= programs.ROOM
    # Not Linux: the server's own choice is right.
    return True
