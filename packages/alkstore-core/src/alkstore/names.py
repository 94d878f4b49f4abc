"""Which names are legal: shared ones, which address something, and local ones, which describe it."""

from typing import Final

from alkstore.errors import InvalidArgument, InvalidName, ReservedName, show

__all__ = ["MAX_BYTES", "OUTBOX_PREFIX", "PREFIX", "SCHEDULER_LOCK", "local", "shared"]

MAX_BYTES: Final = 255
"""Greatest length of a name in bytes of UTF-8: what an index entry of any engine holds without cutting."""

PREFIX: Final = "__alkstore_"
"""What alkstore's own names begin with; no shared name of a consumer does."""

OUTBOX_PREFIX: Final = "__alkstore_outbox:"
"""An outbox's backing queue is this and the outbox's name; the result is checked no second time (OBX-01)."""

SCHEDULER_LOCK: Final = "__alkstore_scheduler"
"""The lock whose holder fires schedules."""


def shared(name: object, what: str) -> str:
    """Check the name of a channel, stream, queue, outbox, lock or schedule and give it as a plain ``str``.

    Raises:
        InvalidArgument: Not a ``str``.
        InvalidName: Blank, over 255 bytes, or with a NUL or a lone surrogate.
        ReservedName: Begins with ``__alkstore_``, exactly so.

    Rows: NAME-01, NAME-02, NAME-03, NAME-05.
    """
    plain = local(name, what)
    if plain.startswith(PREFIX):
        raise ReservedName(plain, what)
    return plain


def local(name: object, what: str) -> str:
    """Check the name of a consumer, key, worker or header and give it as a plain ``str``.

    Raises:
        InvalidArgument: Not a ``str``.
        InvalidName: Blank, over 255 bytes, or with a NUL or a lone surrogate.

    Rows: NAME-01, NAME-03, NAME-04, NAME-05.
    """
    if not isinstance(name, str):
        raise InvalidArgument(f"{what} must be a str, got {show(name)}")
    # str(name) would ask a subclass, and a str-based Enum answers with its member's name instead of its text.
    plain = str.__str__(name)
    if not plain.strip():
        raise InvalidName(plain, what, "must not be blank")
    if "\0" in plain:
        raise InvalidName(plain, what, "must not contain NUL")
    try:
        size = len(plain.encode())
    except UnicodeEncodeError as error:
        raise InvalidName(plain, what, "must not contain a lone surrogate") from error
    if size > MAX_BYTES:
        raise InvalidName(plain, what, f"must be at most {MAX_BYTES} bytes of UTF-8, not {size}")
    return plain
