"""Opening a store by URL: which engine, and which URLs and options are refused before any engine is asked."""

import logging
import re
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Final, TypedDict, TypeVar
from urllib.parse import unquote, urlsplit

from alkstore._plugins import find_engine
from alkstore.errors import InvalidArgument, show
from alkstore.hookspecs import EngineRegistration
from alkstore.observation import check_observers
from alkstore.stamps import Duration

if TYPE_CHECKING:  # the store imports what imports this module
    from alkstore.store import Store

__all__ = ["StoreOptions", "find", "is_private_sqlite", "open", "read_url", "shown"]


class StoreOptions(TypedDict, total=False):
    """What every engine's store takes; a constructor passes it on as ``**options: Unpack[StoreOptions]``.

    Attributes:
        worker_id: Who claims, for people to read; ``host:pid:4 hex`` by default.
        wait_timeout: Seconds that anything waits for a transaction or another process, 30 by default (TX-08).
        poll_interval: Seconds between looks when a wake was lost, 5 by default (Q-21).
        random: The source of jitter.
    """

    worker_id: str | None
    wait_timeout: Duration
    poll_interval: Duration
    random: Random | None


COMMON_OPTIONS: Final = frozenset({*StoreOptions.__annotations__, "observers"})
"""What every engine takes."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*")
_IN_MEMORY: Final = re.compile(r"[?&;](mode=memory|vfs=memdb)\b", re.IGNORECASE)
_NO_FILE: Final = frozenset({"", ":memory:", "file:", "file::memory:"})

T = TypeVar("T")

_logger: Final = logging.getLogger("alkstore")


def open(url: str, **options: object) -> "Store":
    """Make the store that a URL names, with the engine installed for its scheme.

    Args:
        url: ``mem://``, ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``postgresql://…``. The scheme's case
            does not matter; the rest is the engine's to read.
        **options: ``worker_id``, ``wait_timeout``, ``poll_interval``, ``random``, ``observers`` (functions that are told
            what happens: `alkstore.observing`), and the engine's own.

    Returns:
        A store that is not open yet: ``async with alkstore.open(url) as store``, or await it and close it.

    Raises:
        InvalidArgument: The URL is no URL, names a private SQLite database or a scheme without an engine; an option
            is unknown; the engine was built for another major version of the contract.

    Cost: the first call of a process looks for installed engines; no I/O on storage. Rows: VER-02.
    """
    registration, url = find(url, options)
    observers = check_observers(options.pop("observers", ()))
    store = registration.open(url, options)
    if observers:
        store._observe(observers)  # not as an option: no engine need know of them
    if not registration.durable:
        scheme = url.partition("://")[0]
        _logger.warning("%s:// keeps nothing: what is stored ends with this process", scheme)
    return store


def find(url: str, options: Mapping[str, object]) -> tuple[EngineRegistration, str]:
    """Give the engine of a URL, and the URL as that takes it: its scheme in lower case. Raises as `open`."""
    if not isinstance(url, str):
        raise InvalidArgument(f"url must be text such as 'sqlite:///app.db', got {type(url).__name__}")
    if not url.strip():
        raise InvalidArgument("url is empty; give one such as 'sqlite:///app.db'")
    _refuse_private_sqlite(url)
    scheme, separator, rest = url.partition("://")
    if not separator or _SCHEME.fullmatch(scheme) is None:
        raise InvalidArgument(f"url must begin with a scheme, as in 'sqlite:///app.db', got {shown(url)}")
    scheme = scheme.lower()
    registration = find_engine(scheme)
    _refuse_unknown_options(registration, scheme, options)
    return registration, f"{scheme}://{rest}"


def _refuse_unknown_options(
    registration: EngineRegistration, scheme: str, options: Mapping[str, object]
) -> None:
    known = COMMON_OPTIONS | registration.options
    unknown = sorted(options.keys() - known)
    if unknown:
        names = ", ".join(show(name) for name in unknown)
        raise InvalidArgument(f"{scheme}:// has no option {names}; it takes {', '.join(sorted(known))}")


def _refuse_private_sqlite(url: str) -> None:
    if is_private_sqlite(url):
        raise InvalidArgument(
            f"url names a SQLite database without a file, got {shown(url)}; "
            "a store in memory is mem:// (package alkstore-mem), a file is sqlite:///path"
        )


def is_private_sqlite(url: str) -> bool:
    """Whether any reader of SQLite names would make a database that only one connection sees.

    Each connection of the store would get an empty database of its own, and what was written would seem lost. Cases:
    no name at all (a bare scheme, an empty path), ``:memory:`` bare or as ``file:`` URI, and the parameters that ask for
    memory; each percent-encoded or not, in any case.
    """
    text = unquote(url).strip()
    scheme, colon, rest = text.partition(":")
    if scheme.lower() in ("", "file"):
        rest = text  # no scheme of ours: the whole text is what sqlite3.connect would be given
    elif not (colon and scheme.lower().partition("+")[0] == "sqlite"):
        return False
    elif rest.startswith("//"):
        authority, slash, rest = rest[2:].partition("/")
        if not slash:
            return True  # sqlite://app.db has a host and no path
        del authority
    name = re.split(r"[?#]", rest, maxsplit=1)[0].strip().lower()
    return name in _NO_FILE or _IN_MEMORY.search(rest) is not None


def shown(url: str) -> str:
    """Show a URL without what may be a password: user part, query, and any text that is a keyword list."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "text without one" if re.search(r"[@=]", url) else show(url)
    return show(f"{scheme}://{re.split(r'[?#]', rest.rpartition('@')[2], maxsplit=1)[0]}")


def read_url(url: object, parse: Callable[[str], T], example: str) -> tuple[T, str]:
    """Read the URL of a server with the driver's own ``parse``; gives what that made of it, and what may be shown of the URL.

    Raises:
        InvalidArgument: It cannot be read, or can be read in two ways. Nothing of it is shown: where it is misread, a part of
            the password may stand anywhere.
    """
    wrong = f"url must be text such as {example!r}, with what is no letter or digit in them encoded"
    if not isinstance(url, str):
        raise InvalidArgument(f"{wrong}, got {type(url).__name__}")
    try:
        parts, read = urlsplit(url), parse(url)
    except Exception:  # whatever it is, its text may show a part of a password
        raise InvalidArgument(wrong) from None
    if "#" in url or "@" in parts.path or url.count("@") > 1:
        raise InvalidArgument(wrong)
    return read, f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
