"""Every error that alkstore raises.

    AlkstoreError
    ├── InvalidName (ValueError)        a name that no engine accepts
    ├── ReservedName (ValueError)       a name that alkstore keeps for itself
    ├── InvalidSpec (ValueError)        a schedule's rule that cannot be read
    ├── InvalidArgument (ValueError)    any other argument, or a use that cannot work
    ├── PayloadTooLarge                 a notify payload over the engine's limit
    ├── CodecError                      a value that is not JSON, or bytes that do not fit
    ├── LeadershipLost                  the scheduler's lease is somebody else's
    ├── ClaimLost                       the claim ended before its outcome landed
    ├── LockLost                        a named lock ended under its holder
    ├── LockTimeout (TimeoutError)      a named lock was not free in time
    ├── OffsetConflict                  a consumer's position moved meanwhile
    ├── Closed                          the store, receiver or transaction has ended
    ├── HandleConsumed                  a one-shot handle was settled before
    ├── InsideTransaction               a write beside the task's own open transaction
    ├── SchemaMismatch                  storage written by another schema version
    └── DatabaseError                   the engine failed; its cause is chained

A class builds its text from its fields, so the text cannot drift between the places that raise it.
"""

import copy
from typing import Final, Self

__all__ = [
    "AlkstoreError",
    "ClaimLost",
    "Closed",
    "CodecError",
    "DatabaseError",
    "HandleConsumed",
    "InsideTransaction",
    "InvalidArgument",
    "InvalidName",
    "InvalidSpec",
    "LeadershipLost",
    "LockLost",
    "LockTimeout",
    "OffsetConflict",
    "PayloadTooLarge",
    "ReservedName",
    "SchemaMismatch",
]

SHOWN_CHARACTERS: Final = 80
"""How much of a value an error message shows; the error's attribute keeps all of it."""


def show(value: object, most: int = SHOWN_CHARACTERS) -> str:
    """Give a value's repr, cut after ``most`` characters and escaped, so that any terminal and any log can print it.

    A value whose own ``__repr__`` fails must not turn a clear error into an unclear one.
    """
    try:
        text = repr(value[: most + 1] if isinstance(value, (str, bytes)) else value)
    except Exception:
        text = f"<{type(value).__name__}>"
    if len(text) > most:
        text = f"{text[:most]}…"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class AlkstoreError(Exception):
    """The base of every error here: one ``except`` catches them all.

    ``args`` are always the constructor's arguments, so pickling keeps every attribute.
    """

    def __str__(self) -> str:
        text = self._text()
        return text.encode("utf-8", "backslashreplace").decode("utf-8")

    def _text(self) -> str:
        return " ".join(str(part) for part in self.args)

    def _twin(self) -> Self:
        """Give another one like it: raised in several tasks, a single one would collect the tracebacks of all."""
        twin = copy.copy(self)
        twin.__cause__ = self.__cause__
        return twin


class InvalidName(AlkstoreError, ValueError):
    """A name is blank, too long, or holds what cannot be stored."""

    def __init__(self, name: str, what: str = "name", problem: str = "must not be blank") -> None:
        super().__init__(name, what, problem)
        self.name = name
        self.what = what
        self.problem = problem

    def _text(self) -> str:
        return f"{self.what} {self.problem}, got {show(self.name)}"


class ReservedName(AlkstoreError, ValueError):
    """A name begins with the prefix that alkstore keeps for its own rows."""

    def __init__(self, name: str, what: str = "name") -> None:
        super().__init__(name, what)
        self.name = name
        self.what = what

    def _text(self) -> str:
        return f"{self.what} must not begin with '__alkstore_', which alkstore keeps for itself, got {show(self.name)}"


class InvalidSpec(AlkstoreError, ValueError):
    """A schedule's rule is not ``@every <n><unit>``."""

    def __init__(self, spec: str, problem: str = "must be '@every <n><unit>' with unit s, m, h or d") -> None:
        super().__init__(spec, problem)
        self.spec = spec
        self.problem = problem

    def _text(self) -> str:
        return f"schedule spec {self.problem}, got {show(self.spec)}"


class InvalidArgument(AlkstoreError, ValueError):
    """An argument that is no name is wrong, or a call cannot work where it was made."""


class PayloadTooLarge(AlkstoreError):
    """A notify payload is over the engine's limit; put the data in a row and notify its id."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size = size
        self.limit = limit

    def _text(self) -> str:
        return f"notify payload must be at most {self.limit} bytes, got {self.size}; store the data and send its id"


class CodecError(AlkstoreError):
    """A value is not JSON, or stored bytes do not fit what was asked for."""


class LeadershipLost(AlkstoreError):
    """The scheduler's lease is held by another runner, or has lapsed."""


class ClaimLost(AlkstoreError):
    """The claim is no longer this handle's: its outcome did not land."""


class LockLost(AlkstoreError):
    """A named lock ended while its block was still running."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def _text(self) -> str:
        return (
            f"lock {show(self.name)} was lost before its block ended; what the block did may have overlapped"
        )


class LockTimeout(AlkstoreError, TimeoutError):
    """A named lock was not free within the timeout; nothing is held."""

    def __init__(self, name: str, timeout: float) -> None:
        super().__init__(name, timeout)
        self.name = name
        self.timeout = timeout

    def __str__(self) -> str:  # OSError, TimeoutError's base, would print its own form of two arguments
        return f"lock {show(self.name)} was not free within {self.timeout:g} s"


class OffsetConflict(AlkstoreError):
    """A consumer's position is not where the transaction expected it: read again from it."""

    def __init__(self, expected: int | None, found: int) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found

    def _text(self) -> str:
        if self.expected is None:
            return f"consumer position must move forward, it is at {self.found}; read from it in this transaction"
        return f"consumer position expected at {self.expected}, found at {self.found}; read again from there"


class Closed(AlkstoreError):
    """The store, receiver or transaction has ended."""

    def __init__(self, what: str = "store") -> None:
        super().__init__(what)
        self.what = what

    def _text(self) -> str:
        return f"{self.what} is closed"


class HandleConsumed(AlkstoreError):
    """A one-shot handle was settled before; its outcome stands."""

    def __init__(self, what: str = "job handle", by: str = "settled") -> None:
        super().__init__(what, by)
        self.what = what
        self.by = by

    def _text(self) -> str:
        return f"{self.what} was already {self.by}; a handle settles once"


class InsideTransaction(AlkstoreError):
    """A write that commits by itself was called inside this task's own open transaction."""

    def __init__(self, operation: str, twin: str | None, begun: str = "") -> None:
        super().__init__(operation, twin, begun)
        self.operation = operation
        self.twin = twin
        self.begun = begun

    def _text(self) -> str:
        advice = f"use {self.twin}" if self.twin else "end the transaction first"
        begun = f" begun at {self.begun}" if self.begun else ""
        return f"{self.operation} would commit outside this task's open transaction{begun}; {advice}"


class SchemaMismatch(AlkstoreError):
    """Storage was written by a newer schema than this engine knows; nothing was touched."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(found, known)
        self.found = found
        self.known = known

    def _text(self) -> str:
        return (
            f"storage has schema version {self.found}, this engine knows up to {self.known}; upgrade alkstore"
        )


class DatabaseError(AlkstoreError):
    """The engine failed. The driver's exception is the ``__cause__``; what failed may be tried again.

    Attributes:
        outcome_unknown: The write may have landed all the same: an engine sets it where a commit was sent and not
            answered. False means that nothing landed, and only then is anything repeated (DUR-11).
    """

    outcome_unknown: bool = False
    _is_held_back: bool = False
    """Others had the storage for all of ``wait_timeout``: an engine sets it, and nobody who waited meanwhile waits anew."""
