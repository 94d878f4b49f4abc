"""What the project's settings say: where the store is, and with which options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from alkstore.opening import is_private_sqlite

__all__ = ["Configuration", "configuration", "database", "is_without_file"]

KEYS: Final = frozenset({"URL", "DATABASE", "OPTIONS"})

_PLACES: Final = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD"}

_PASSED_ON: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile", "service")
"""Of a database's own options, those that mean the same to alkstore's driver."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A store's URL and options. Its text shows neither."""

    url: str
    options: Mapping[str, object]

    def __repr__(self) -> str:
        return "Configuration(…)"


def configuration() -> Configuration:
    """Read ``ALKSTORE``: ``URL``, else the database of the alias ``DATABASE`` ("default"); ``OPTIONS`` of `alkstore.open`.

    Read anew at each call, because a test's database takes the place of the real one.

    Raises:
        ImproperlyConfigured: It cannot be, and why.
    """
    given = _given()
    url = given.get("URL")
    if url is None:
        url = _url_of(database())
    if not isinstance(url, str):
        raise _wrong(f"its URL must be text, got {type(url).__name__}")
    return Configuration(url, dict(given.get("OPTIONS", {})))


def database() -> str:
    """Give the alias of the database whose transactions are joined, unless another one is named."""
    from django.db import DEFAULT_DB_ALIAS

    alias: str = _given().get("DATABASE", DEFAULT_DB_ALIAS)
    return alias


def is_without_file() -> bool:
    """Whether the store would be where Django's data is, and that is a SQLite database in memory, as in tests."""
    from django.db import connections

    connection = connections[database()]
    return "URL" not in _given() and connection.vendor == "sqlite" and _is_in_memory(connection)


def _given() -> Mapping[str, Any]:
    from django.conf import settings

    given = getattr(settings, "ALKSTORE", {})
    if not isinstance(given, Mapping):
        raise _wrong(f"must be a dict, got {type(given).__name__}")
    if unknown := sorted(given.keys() - KEYS):
        raise _wrong(f"has no key {', '.join(map(repr, unknown))}; it takes {', '.join(sorted(KEYS))}")
    return given


def _url_of(alias: str) -> str:
    from django.db import connections

    if alias not in connections:
        raise _wrong(f"names the database {alias!r}, and DATABASES has none")
    connection = connections[alias]
    make = _MAKERS.get(connection.vendor)
    if make is None:
        raise _wrong(
            f"needs a URL: alkstore has no engine for {connection.vendor}, which database {alias!r} is on"
        )
    return make(connection)


def _sqlite(connection: Any) -> str:
    if _is_in_memory(connection):
        raise _wrong(
            "needs a URL: the database is in memory, where no other connection sees it; "
            "in tests give the database a file, DATABASES[…]['TEST'] = {'NAME': 'test.sqlite3'}, "
            "or the store 'URL': 'mem://'"
        )
    # The path as it stands is relative to the working folder, in both worlds.
    return f"sqlite:///{quote(str(connection.settings_dict['NAME']))}"


def _is_in_memory(connection: Any) -> bool:
    name = str(connection.settings_dict["NAME"])
    return is_private_sqlite(name)


def _postgresql(connection: Any) -> str:
    given = connection.settings_dict
    query = {name: given[key] for name, key in _PLACES.items() if given[key]}
    options = given["OPTIONS"]
    query |= {name: options[name] for name in _PASSED_ON if name in options}
    return f"postgresql:///{quote(str(given['NAME'] or ''), safe='')}?{urlencode(query)}"


_MAKERS: Final[Mapping[str, Callable[[Any], str]]] = {"sqlite": _sqlite, "postgresql": _postgresql}


def _wrong(what: str) -> Exception:
    from django.core.exceptions import ImproperlyConfigured

    error: Exception = ImproperlyConfigured(f"ALKSTORE {what}")
    return error
