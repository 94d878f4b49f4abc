"""A throw-away PgBouncer before a server, for the column and the tests."""

import logging
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
from contextlib import suppress
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias
from urllib.parse import unquote, urlsplit

from alkstore_pg import contract_binaries as programs
from alkstore_pg import contract_dsn
from alkstore_pg import contract_keeper as keeper
from alkstore_pg.contract_dsn import Address
from alkstore_pg.contract_postmaster import LOOK, PATIENCE, TRIES, free_port
from alkstore_pg.contract_server import Server

__all__ = ["PoolMode", "Pooler", "pgbouncer_available"]

PoolMode: TypeAlias = Literal["transaction", "session", "statement"]

LOGGER: Final = logging.getLogger("alkstore")

MOST_CLIENTS: Final = 500

_CONFIGURATION: Final = """
[databases]
* = host={host} port={server_port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users
admin_users = {user}
logfile = {folder}/log
pool_mode = {pool_mode}
default_pool_size = {default_pool_size}
max_client_conn = {most}
{more}
"""
# Nothing is in ignore_startup_parameters: the engine must get along with a pooler that nobody prepared for it.

_MAY_WE_ENCRYPT: Final = struct.pack("!ii", 8, 80877103)


def _program() -> str | None:
    # Debian puts it where the PATH of an ordinary user does not lead.
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


def pgbouncer_available() -> str | None:
    """None if PgBouncer is on this machine; else what to install."""
    if _program() is None:
        return "no pgbouncer on this machine: install the package pgbouncer"
    return None


def _quoted(text: str) -> str:
    return '"{}"'.format(text.replace('"', '""'))


def _version(program: str) -> tuple[int, ...]:
    said = subprocess.run([program, "--version"], capture_output=True, check=True, text=True).stdout
    return tuple(map(int, re.findall(r"\d+", said.splitlines()[0])))


class Pooler:
    """A PgBouncer before a server.

    Attributes:
        version: PgBouncer's, as (1, 18, 0).
    """

    def __init__(self, program: str, server: Server) -> None:
        self.version = _version(program)
        self._program = program
        self._server = server
        self._folder = programs.room("alkstore-bouncer-")
        self._port = 0
        self._logged = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._roles: tuple[str, ...] = ()
        self._pooling: dict[str, str] = {}
        self._settings: dict[str, str] = {}

    @classmethod
    def start(
        cls,
        server: Server,
        *,
        pool_mode: PoolMode = "transaction",
        default_pool_size: int = 20,
        roles: tuple[str, ...] = (),
        settings: dict[str, str] | None = None,
    ) -> Self:
        """Start one; it asks no client for a password.

        Args:
            default_pool_size: Connections to the server for each pair of database and user.
            roles: Who may connect besides the user of ``server.dsn``; without passwords.
            settings: More lines of pgbouncer.ini.

        Raises:
            RuntimeError: There is none, or it does not start: then its log is the text.

        Cost: about 50 ms.
        """
        if (program := _program()) is None:
            raise RuntimeError(pgbouncer_available())
        pooler = cls(program, server)
        pooler._roles = roles
        pooler._pooling = {"pool_mode": pool_mode, "default_pool_size": str(default_pool_size)}
        pooler._settings = settings or {}
        try:
            pooler._users()
            pooler._start()
        except BaseException:
            pooler.close()
            raise
        return pooler

    def _users(self) -> None:
        login = urlsplit(self._server.dsn)
        users = dict.fromkeys(self._roles, "")
        users[contract_dsn.user(self._server.dsn)] = unquote(login.password or "")
        lines = [f"{_quoted(name)} {_quoted(word)}\n" for name, word in users.items()]
        (self._folder / "users").write_text("".join(lines))
        programs.account().owns(self._folder / "users").chmod(0o600)

    def _start(self) -> None:
        for _ in range(TRIES):
            self._port = free_port()
            self._configure()
            self._launch()
            if self._became_ready():
                return
            self._end()
            if "ddress already in use" not in self.log():
                break
        raise RuntimeError(f"{self._program} does not start: {self.log()[-2000:]}")

    def _configure(self) -> None:
        server = self._server.address
        text = _CONFIGURATION.format(
            host=server.host,
            server_port=server.port,
            port=self._port,
            folder=self._folder,
            user=contract_dsn.user(self._server.dsn),
            most=MOST_CLIENTS,
            more="".join(f"{name} = {value}\n" for name, value in self._settings.items()),
            **self._pooling,
        )
        (self._folder / "pgbouncer.ini").write_text(text)

    def _launch(self) -> None:
        self._logged = len(self.log())
        self._process = subprocess.Popen(
            [self._program, "--quiet", self._folder / "pgbouncer.ini"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            env=programs.surroundings(),
            start_new_session=True,
            **programs.account().process(),
        )
        keeper.hold(self._process.pid, signal.SIGKILL)

    def _became_ready(self) -> bool:
        assert self._process is not None
        until = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < until:
            if self._is_open():
                # With its port taken it would go on with the socket alone, and leave TCP to a stranger.
                return f"listening on 127.0.0.1:{self._port}" in self.log()[self._logged :]
            time.sleep(LOOK)
        return False

    def _is_open(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
            client.settimeout(PATIENCE)
            client.connect(str(Address(str(self._folder), self._port).socket))
            # The system lets clients in beyond its end; only it can answer.
            client.sendall(_MAY_WE_ENCRYPT)
            return bool(client.recv(1))
        return False

    def _end(self) -> None:
        if self._process is None:
            return
        # It has nothing to lose, and what gentler signals mean differs from version to version.
        self._process.kill()
        self._process.wait()
        keeper.release(self._process.pid)
        self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, with every connection through it."""
        self._end()
        keeper.forget(str(self._folder))

    def restart(self) -> None:
        """End it with every connection through it, and start it again at the same address."""
        self._end()
        self._launch()
        if not self._became_ready():
            raise RuntimeError(f"{self._program} does not start again: {self.log()[-2000:]}")

    def revive(self) -> bool:
        """Start it again at the same address if it has ended by itself, or its folder was taken away.

        Returns:
            Whether it had to be: a warning is logged then. PgBouncer 1.18 and 1.19.0 end themselves when a client is killed
            in the midst of cancelling, and every case after that would fail, for nothing of the engine's.
        """
        if self._process is not None and self._process.poll() is None and self._is_open():
            return False
        LOGGER.warning("pgbouncer had ended, and is started again; it said: %s", self.log()[-500:])
        self._folder.mkdir(mode=0o755, exist_ok=True)
        programs.account().owns(self._folder)
        self._users()
        self._configure()
        self.restart()
        return True

    def log(self) -> str:
        """What it wrote so far."""
        with suppress(FileNotFoundError):
            return (self._folder / "log").read_text(errors="replace")
        return ""

    def dsn(self, database: str, *, role: str | None = None, tcp: bool = False) -> str:
        """The DSN of a database of the server, through the pooler; its own console is ``pgbouncer``."""
        place = Address("127.0.0.1" if tcp else str(self._folder), self._port)
        return contract_dsn.elsewhere(self._server.dsn_of(database, role=role), place)
