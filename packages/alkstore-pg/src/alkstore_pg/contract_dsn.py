"""Takes connection strings apart, for the column's servers, poolers and proxies."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

__all__ = ["Address", "address", "database", "elsewhere", "on_database", "user"]

PORT: Final = 5432


@dataclass(frozen=True)
class Address:
    """Where a server listens: a loopback name or an address, or the folder of its Unix socket."""

    host: str
    port: int

    @property
    def socket(self) -> Path | None:
        return Path(self.host) / f".s.PGSQL.{self.port}" if self.host.startswith("/") else None


def _query(dsn: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(dsn).query))


def _login(dsn: str) -> str:
    return urlsplit(dsn).netloc.rpartition("@")[0]


def address(dsn: str) -> Address:
    """The one server that a DSN names."""
    parts, query = urlsplit(dsn), _query(dsn)
    host = query.get("host") or unquote(parts.hostname or "localhost")
    return Address(host, int(query.get("port") or parts.port or PORT))


def database(dsn: str) -> str:
    """The name of the database that a DSN names; as everywhere, that of its user if none."""
    return unquote(urlsplit(dsn).path.lstrip("/")) or user(dsn)


def user(dsn: str) -> str:
    return unquote(urlsplit(dsn).username or "")


def on_database(dsn: str, name: str, *, role: str | None = None) -> str:
    """The same server's DSN for another database, and for another user without a password if one is named."""
    parts = urlsplit(dsn)
    login = _login(dsn) if role is None else quote(role, safe="")
    netloc = f"{login}@{parts.netloc.rpartition('@')[2]}" if login else parts.netloc
    return urlunsplit(parts._replace(netloc=netloc, path=f"/{quote(name, safe='')}"))


def elsewhere(dsn: str, place: Address) -> str:
    """The DSN of the same database and user, through another address."""
    parts, query, login = urlsplit(dsn), _query(dsn), _login(dsn)
    for name in ("host", "port"):
        query.pop(name, None)
    at = "" if place.socket else f"{place.host}:{place.port}"
    if place.socket:
        query |= {"host": place.host, "port": str(place.port)}
    netloc = f"{login}@{at}" if login else at
    return urlunsplit(parts._replace(netloc=netloc, query=urlencode(query, safe="/")))
