"""A trace: the steps of a machine as plain values, which any engine can be given.

A step is a mapping with ``do``, what it does, and that verb's arguments: numbers, texts, names. What a step gives (a
handle, a receiver, a lock, a transaction, the id of a job) it calls by a name, ``as``, and later steps take it by that
name; a step whose name was never given, because a claim found nothing say, does nothing. So a trace holds nothing that an
engine chose, and stays a trace when steps are left out.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

__all__ = ["Step", "Trace", "TraceError", "told"]

FORMAT: Final = "alkstore-trace/1"

Step: TypeAlias = Mapping[str, Any]


class TraceError(Exception):
    """A text is no trace, or one that this suite cannot replay."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Steps, and what a machine was like that found them.

    Attributes:
        areas: What is looked at after each step, ``"queue"`` and the like.
        needs: Capabilities without which an engine cannot do the steps.
        found: The row, the engine and the promise that was not kept, for people.
    """

    steps: Sequence[Step]
    areas: Sequence[str]
    needs: Sequence[str] = ()
    found: str = ""

    def as_json(self) -> str:
        """Give a text with a line a step."""
        head = {"format": FORMAT, "found": self.found, "areas": [*self.areas], "needs": [*self.needs]}
        steps = ",\n".join(f"  {json.dumps(step, ensure_ascii=False)}" for step in self.steps)
        return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "steps": [\n{steps}\n]}}\n'

    @classmethod
    def from_json(cls, text: str) -> "Trace":
        """Read what `as_json` gave.

        Raises:
            TraceError: It is something else.
        """
        try:
            read = json.loads(text)
            if read["format"] != FORMAT:
                raise TraceError(f"trace has the format {read['format']!r}, this suite replays {FORMAT!r}")
            if not all(isinstance(step["do"], str) for step in read["steps"]):
                raise TraceError("every step of a trace must say what it does")
            return cls(read["steps"], read["areas"], read["needs"], read["found"])
        except (ValueError, KeyError, TypeError) as error:
            raise TraceError(f"this is no trace of a machine: {error!r}") from error


def told(step: Step) -> str:
    """Give a step as a report shows it."""
    rest = " ".join(f"{name}={value!r}" for name, value in step.items() if name != "do" and value is not None)
    return f"{step['do']} {rest}".strip()
