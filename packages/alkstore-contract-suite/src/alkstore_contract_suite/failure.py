"""Why a case did not pass, as exceptions that rows never write themselves."""

import reprlib
import traceback
from typing import Final

__all__ = ["ContractFailure", "Inconclusive", "NotRaced", "missing", "shown"]

SHOWN_CHARACTERS: Final = 400
"""How much of a value a report shows; a payload of a mebibyte would bury the promise."""

_REPR: Final = reprlib.Repr()
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = 20
_REPR.maxstring = 160
_REPR.maxother = 240


def shown(value: object) -> str:
    """Give a value's repr, cut and escaped, so that every terminal and every report can carry it."""
    try:
        text = _REPR.repr(value)
    except Exception as error:  # the value's own __repr__; the report must not break on it
        text = f"<{type(value).__name__} whose repr fails: {type(error).__name__}>"
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[:SHOWN_CHARACTERS]}…"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class ContractFailure(AssertionError):
    """A promise was not kept."""

    def __init__(self, promise: str, expected: str, observed: str) -> None:
        super().__init__(promise, expected, observed)
        self.promise = promise
        self.expected = expected
        self.observed = observed

    def __str__(self) -> str:
        return f"{self.promise}: expected {self.expected}, observed {self.observed}"


class Inconclusive(Exception):
    """The case could not show what it is there to show, so it is neither passed nor failed."""


class NotRaced(Inconclusive):
    """What was to happen at the same time happened one after the other; another try may go otherwise."""


def missing(error: BaseException | None) -> str:
    """Give the name of the method that is not implemented, if that is at the bottom of an error; else nothing."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, NotImplementedError):
            text = str(error)
            return text if text.isidentifier() else traceback.extract_tb(error.__traceback__)[-1].name
        seen.append(error)
        error = (
            error.exceptions[0]
            if isinstance(error, BaseExceptionGroup)
            else error.__cause__ or error.__context__
        )
    return ""
