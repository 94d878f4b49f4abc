"""The server of the PostgreSQL benchmarks: thrown away afterwards, but as durable as a real one, and on a real disk."""

import argparse
import importlib.metadata
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from alkstore_pg import contract_binaries as programs
from alkstore_pg import contract_keeper as keeper
from alkstore_pg.contract_postmaster import Postmaster
from alkstore_pg.contract_server import Server, versions

__all__ = ["add_options", "database", "facts", "started"]

SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "wal_level": "replica",  # as a server that has backups: "minimal" leaves out what those need
    "max_wal_size": "4GB",  # a checkpoint every few seconds would be in some rounds and not in others
}


@contextmanager
def started(folder: Path, version: int | None = None) -> Iterator[Server]:
    """Start a server whose data stand in a folder; ``version``: the newest one here by default."""
    found = versions()
    wanted = version or max(found, default=0)
    if wanted not in found:
        raise SystemExit(f"no postgresql {version or ''} here; there are {sorted(found)}")
    if not programs.account().reads(folder):
        raise SystemExit(f"the server's user cannot reach {folder}: name another --folder")

    class OnDisk(Postmaster):
        """The servers of the tests stand in memory, where a sync costs nothing."""

        def __init__(self, binaries: Path) -> None:
            super().__init__(binaries)
            self._place = Path(tempfile.mkdtemp(prefix="alkstore-bench-", dir=folder))
            keeper.keep(str(self._place))
            programs.account().owns(self._place)
            self._data = self._place / "data"

        def close(self) -> None:
            super().close()
            keeper.forget(str(self._place))

    postmaster = OnDisk.create(programs.reachable(found[wanted]), SETTINGS)
    server = Server._started(postmaster)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def database(server: Server) -> Iterator[str]:
    """Give the DSN of a database that nothing has been in, and drop it afterwards."""
    name = f"bench_{next(_numbers)}"
    yield server.create_database(name)
    server.drop_database(name)


_numbers: Final = iter(range(1, 1_000_000))


def facts(server: Server) -> dict[str, str]:
    """Tell the software that the figures come from, and what the server was told."""
    names = [*SETTINGS, "shared_buffers"]
    told = [f"{name}={server.execute(f'SHOW {name}')[0][0]}" for name in names]
    return {
        "postgresql": f"{server.execute('SHOW server_version')[0][0]}, over a Unix socket",
        "settings": ", ".join(told),
        "asyncpg": importlib.metadata.version("asyncpg"),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what every benchmark on a server can be told."""
    parser.add_argument("--version", type=int, help="the server's major version (the newest here)")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the server's data stand"
    )
    parser.add_argument("--to", type=Path, help="write the report here, as .md and .json")
