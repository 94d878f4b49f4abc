"""What a DSN says, read so far that a wrong one is refused before anybody shows a part of it that is a password.

The driver reads it again. What it cannot read it puts into its message, and where a password holds an ``@``, ``/``, ``?``
or ``#`` that is not percent-encoded it takes a piece of the password for the host's name.
"""

import os
import re
from typing import Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from alkstore.errors import InvalidArgument

__all__ = ["SSL_MODES", "Address", "read"]

SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")

_SESSIONS: Final = ("any", "primary", "standby", "read-write", "read-only", "prefer-standby")

_UNKNOWN_TO_THE_DRIVER: Final = {
    "connect_timeout": "wait_timeout says how long connecting may take",
    "channel_binding": "the driver does without",
    "gssencmode": "the driver does without",
    "require_auth": "the driver takes what the server asks for",
    **dict.fromkeys(
        ("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"),
        "wait_timeout and probe_interval find a dead network",
    ),
}
"""Settings of libpq that hosts of databases put into their URLs. The server would take them for its own and refuse them."""

_SPELLING: Final = "postgresql://user:password@host:5432/database"

_ENCODE: Final = (
    "percent-encode what is no letter or digit in user, password and database (@ is %40, / is %2F)"
)


class Address(NamedTuple):
    """A DSN that can be used, and what of it may be shown."""

    dsn: str
    """With the scheme that the driver takes. Holds the password."""
    host: str
    database: str
    has_application_name: bool
    secrets: tuple[str, ...]
    """Texts that no message may hold, in every spelling of them that is in the DSN."""


def read(value: object, what: str) -> Address:
    """Check a DSN.

    Raises:
        InvalidArgument: It is none, or its parts are not told apart; the text shows no part of it that may be secret.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be text such as {_SPELLING!r}, got {type(value).__name__}")
    scheme, separator, rest = value.partition("://")
    if not separator or scheme.lower() not in ("postgresql", "postgres", "postgresql+asyncpg"):
        raise InvalidArgument(
            f"{what} must begin with postgresql://, as in {_SPELLING!r}{_hint(scheme, separator)}"
        )
    if any(ord(character) < 32 or 0xD800 <= ord(character) < 0xE000 for character in rest):
        raise InvalidArgument(f"{what} must hold no control characters and no lone surrogates; {_ENCODE}")
    dsn = f"postgresql://{rest}"
    _refuse_confusion(rest, what)
    try:
        parts = urlsplit(dsn)
    except ValueError:
        # Its text shows user and password.
        raise InvalidArgument(f"{what} must name hosts in plain letters; {_ENCODE}") from None
    settings = _settings(parts.query, what)
    return Address(dsn, *_place(parts, settings), "application_name" in settings, _secrets(parts, settings))


def _hint(scheme: str, separator: str) -> str:
    # Without a separator it may be libpq's list of keywords, with a password in it.
    return f", got {scheme[:40]!r}" if separator and re.fullmatch(r"[A-Za-z0-9+.\-]+", scheme) else ""


def _refuse_confusion(rest: str, what: str) -> None:
    authority, path = re.fullmatch(r"([^/?#]*)([^?]*)(?:\?.*)?", rest, re.DOTALL).groups()  # type: ignore[union-attr]  # it fits any text
    hosts = authority.rpartition("@")[2]
    if "#" in rest or authority.count("@") > 1 or "@" in path:
        raise InvalidArgument(
            f"{what} cannot be told apart into user, password, host and database; {_ENCODE}"
        )
    for host in hosts.split(","):
        port = re.fullmatch(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::([0-9]{1,5})?)?", unquote(host))
        if port is None or int(port[1] or 5432) not in range(1, 65536):
            raise InvalidArgument(
                f"{what} must name a host as host:port, with a port from 1 to 65535; {_ENCODE}"
            )


def _settings(query: str, what: str) -> dict[str, str]:
    try:
        settings = dict(parse_qsl(query, keep_blank_values=False, strict_parsing=True)) if query else {}
    except ValueError:
        # Its text shows the field.
        raise InvalidArgument(f"{what} must hold name=value pairs behind the ?; {_ENCODE}") from None
    for name, allowed in (("sslmode", SSL_MODES), ("target_session_attrs", _SESSIONS)):
        if settings.get(name, allowed[0]) not in allowed:
            raise InvalidArgument(f"{what} must have {name} one of {', '.join(allowed)}")
    for name in settings.keys() & _UNKNOWN_TO_THE_DRIVER.keys():
        raise InvalidArgument(f"{what} must not hold {name}; leave it out, {_UNKNOWN_TO_THE_DRIVER[name]}")
    if not all(re.fullmatch(r"[0-9]{1,5}", port) for port in settings.get("port", "5432").split(",")):
        raise InvalidArgument(f"{what} must have a port from 1 to 65535")
    return settings


def _place(parts: SplitResult, settings: dict[str, str]) -> tuple[str, str]:
    user = unquote(parts.netloc.rpartition("@")[0].partition(":")[0]) or settings.get("user", "")
    host = unquote(parts.netloc.rpartition("@")[2]) or settings.get("host") or os.environ.get("PGHOST")
    database = unquote(parts.path[1:]) or settings.get("dbname") or settings.get("database")
    database = database or os.environ.get("PGDATABASE") or user or os.environ.get("PGUSER")
    return host or "localhost", database or "the user's own"


def _secrets(parts: SplitResult, settings: dict[str, str]) -> tuple[str, ...]:
    spelled = parts.netloc.rpartition("@")[0].partition(":")[2]
    texts = {spelled, unquote(spelled), settings.get("password", ""), settings.get("sslpassword", "")}
    texts |= {quote(text) for text in texts}
    return tuple(sorted(texts - {""}, key=len, reverse=True))
