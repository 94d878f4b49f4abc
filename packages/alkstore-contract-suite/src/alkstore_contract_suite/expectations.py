"""The failures that an author knows of, from ``contract-expectations.toml``.

They keep a run readable: what is listed is XFAIL, what is listed and passes is XPASS and fails the run, so that the
list cannot go stale. They never change a verdict. An entry::

    [[expect]]
    engine = "mem"
    row = "Q-07"
    mode = "concurrent"
    kind = "fail"                  # or "inconclusive"
    reason = "claims are not atomic yet"
    issue = "https://example.org/issues/7"
    expires = 2027-01-31
"""

import datetime as dt
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.row import MODES

__all__ = ["FILE_NAME", "Expectation", "ExpectationError", "read"]

FILE_NAME: Final = "contract-expectations.toml"

KINDS: Final = {"fail": Status.FAIL, "inconclusive": Status.INCONCLUSIVE}

FIELDS: Final = {
    "engine": str,
    "row": str,
    "mode": str,
    "kind": str,
    "reason": str,
    "issue": str,
    "expires": dt.date,
}


class ExpectationError(Exception):
    """The file cannot be read, or names what does not exist."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One cell that is known not to pass."""

    engine: str
    row: str
    mode: str
    kind: str
    reason: str
    issue: str
    expires: dt.date

    @property
    def status(self) -> Status:
        """What the cell is known to show."""
        return KINDS[self.kind]


def read(path: Path, ids: Iterable[str], today: dt.date) -> Mapping[tuple[str, str, str], Expectation]:
    """Read the entries that have not expired, by engine, row and mode; none if there is no file.

    Raises:
        ExpectationError: An entry is malformed, doubled, or about a row that does not exist.
    """
    if not path.exists():
        return {}
    try:
        entries = tomllib.loads(path.read_text("utf-8")).get("expect", [])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExpectationError(f"{path} cannot be read: {error}") from error
    known = set(ids)
    found: dict[tuple[str, str, str], Expectation] = {}
    for number, entry in enumerate(entries, 1):
        each = _checked(f"{path}, entry {number}", entry, known)
        key = each.engine, each.row, each.mode
        if key in found:
            raise ExpectationError(f"{path}, entry {number}: this cell is listed twice")
        found[key] = each
    return {key: each for key, each in found.items() if today < each.expires}


def _checked(where: str, entry: Mapping[str, Any], known: set[str]) -> Expectation:
    if set(entry) != set(FIELDS):
        raise ExpectationError(f"{where}: must have exactly {', '.join(FIELDS)}, got {', '.join(entry)}")
    for name, kind in FIELDS.items():
        if not isinstance(entry[name], kind):
            raise ExpectationError(f"{where}: {name} must be a {kind.__name__}, got {entry[name]!r}")
    if entry["row"] not in known:
        raise ExpectationError(f"{where}: no row {entry['row']!r}; patterns are not allowed here")
    if entry["mode"] not in MODES:
        raise ExpectationError(f"{where}: unknown mode {entry['mode']!r}")
    if entry["kind"] not in KINDS:
        raise ExpectationError(f"{where}: kind must be one of {', '.join(KINDS)}, got {entry['kind']!r}")
    return Expectation(**entry)
