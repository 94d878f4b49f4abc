"""What an engine can tell of the state of its storage: facts, and findings with what to do about each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Diagnosis", "Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that somebody should do something about.

    Attributes:
        name: What it is called wherever it is found, in lower case with dashes.
        text: What is so, in figures.
        advice: What to do.
        is_problem: Work is not getting done, or soon will not be; else it is worth knowing.
    """

    name: str
    text: str
    advice: str
    is_problem: bool = True


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What an engine found.

    Attributes:
        facts: Names with dashes to a text, a number, or None where it cannot be told. Sizes are bytes, ages seconds.
        findings: What to do something about.
        clock_offset: Seconds by which the storage's clock is ahead of this process'; None where they are the same one.
    """

    facts: Mapping[str, str | int | float | None]
    findings: Sequence[Finding] = field(default=())
    clock_offset: float | None = None
