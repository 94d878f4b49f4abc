"""What a call may answer, where the contract leaves a choice too, and what is so afterwards."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Allowed", "Raised", "anything", "just", "one_of", "raising", "such"]


class Raised(NamedTuple):
    """The answer of a call that raised an error of this type."""

    error: str


@dataclass(frozen=True, slots=True)
class Allowed:
    """The answers that the contract allows.

    Attributes:
        expected: What they are, in words, for a report.
        admits: Whether an answer is one of them.
        then: Makes the model go on from the answer that was given.
    """

    expected: str
    admits: Callable[[Any], bool]
    then: Callable[[Any], object]


def just(value: object, then: Callable[[], object] | None = None) -> Allowed:
    """Allow exactly one answer."""
    return Allowed(
        repr(value), lambda got: bool(got == value) and type(got) is type(value), lambda _: then and then()
    )


def one_of(*values: object) -> Allowed:
    """Allow one of several answers, none of which changes anything."""
    return Allowed(" or ".join(map(repr, values)), lambda got: got in values, lambda _: None)


def raising(*errors: str) -> Allowed:
    """Allow an error of one of these types, after which all is as before."""
    return one_of(*(Raised(error) for error in errors))


def such(expected: str, admits: Callable[[Any], bool], then: Callable[[Any], object]) -> Allowed:
    """Allow whatever fits; the model takes over which it was. An error never fits."""
    return Allowed(expected, lambda got: not isinstance(got, Raised) and admits(got), then)


def anything() -> Allowed:
    """Allow every answer: the contract says nothing."""
    return Allowed("anything", lambda _: True, lambda _: None)
