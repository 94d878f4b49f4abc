"""The schema of an engine that has one: numbered files that only go forward, and what of them a storage still lacks."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Final, NamedTuple

from alkstore.errors import DatabaseError, SchemaMismatch, show
from alkstore.statements import read, split

__all__ = ["Migration", "load", "plan"]

_FILE: Final = re.compile(r"([0-9]{4})_([a-z0-9_]+)\.sql")


class Migration(NamedTuple):
    """One step from a schema version to the next."""

    version: int
    """The schema's version after it, from 1."""
    name: str
    checksum: str
    """SHA-256 of the file's text in hexadecimal; newlines count as line feeds, whatever a checkout made of them."""
    statements: tuple[str, ...]
    """What to execute, in order, in one transaction; without comments and closing ``;``."""


def load(package: str) -> Sequence[Migration]:
    """Read ``migrations/NNNN_name.sql`` of an engine's package, in the order of their numbers.

    Raises:
        ValueError: There is none, a file is named otherwise, a number is missing or there twice, or a file holds no
            statement or one that is not closed.
    """
    folder = resources.files(package) / "migrations"
    where = f"{package}/migrations"
    files = sorted(folder.iterdir(), key=lambda file: file.name) if folder.is_dir() else []
    found: list[Migration] = []
    for file in files:
        if file.name.endswith(".sql"):
            found.append(_migration(file.name, read(file), where))
    versions = [migration.version for migration in found]
    if not versions or versions != list(range(1, len(versions) + 1)):
        raise ValueError(f"{where}: files must be numbered from 0001 without a gap, got {versions}")
    return tuple(found)


def _migration(file: str, text: str, where: str) -> Migration:
    match = _FILE.fullmatch(file)
    if match is None:
        raise ValueError(f"{where}: a file must be named NNNN_name.sql, got {show(file)}")
    statements = split(text, f"{where}/{file}")
    if not statements:
        raise ValueError(f"{where}/{file}: there is no statement")
    return Migration(int(match[1]), match[2], hashlib.sha256(text.encode()).hexdigest(), statements)


def plan(known: Sequence[Migration], applied: Mapping[int, str]) -> Sequence[Migration]:
    """Give what is to be applied, in order, to a storage that says which versions it has with which checksums.

    Raises:
        SchemaMismatch: The storage has a newer version than is known.
        DatabaseError: The storage skipped a version, or one was applied from another text.

    Rows: DUR-04.
    """
    found = max(applied, default=0)
    if found > len(known):
        raise SchemaMismatch(found, len(known))
    if lacking := [version for version in range(1, found) if version not in applied]:
        raise DatabaseError(
            f"storage has schema version {found} but never had {lacking}; restore it from a backup"
        )
    for migration in known[:found]:
        if applied[migration.version] != migration.checksum:
            raise DatabaseError(
                f"storage's schema version {migration.version} was made by another text than "
                f"{show(migration.name)} of this engine; use the alkstore that made it"
            )
    return known[found:]
