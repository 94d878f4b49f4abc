"""What is known of the faults that no test finds: each has a reason, and docs/survivors.md shows all of them.

An entry is found by the module, the function, the kind of the fault, and the text of the line before and after: numbers of
lines shift. Where one function has two such faults alike, one entry with one reason speaks for both.
"""

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from workspace import ROOT

if TYPE_CHECKING:  # what makes the faults is installed where they are planted, and nowhere else
    from mutation_faults import Fault

__all__ = ["FILE", "KINDS", "PAGE", "Key", "Known", "page", "read", "unreasoned"]

FILE: Final = ROOT / "tools" / "survivors.toml"
PAGE: Final = ROOT / "docs" / "survivors.md"

KINDS: Final[Mapping[str, str]] = {
    "twice": "said twice: another line, or a caller, refuses, ends or frees the same",
    "equal": "equivalent: the values that would tell cannot come",
    "short": "a short cut: without it the long way gives the same",
    "sooner": "a little earlier or later, of its own accord",
    "tidy": "tidying: memory that the next turn frees, or an order in which nothing is lost",
    "race": "only in a race of one turn of the loop, which ends the same way",
    "text": "text: what is logged or warned of, and which line a warning names",
    "engine": "only engines with I/O use it",
}

HEAD: Final = """# Survivors

Faults that [the mutation tool](mutation.md) plants and no test finds, one by one, each with the reason why nobody could
notice it. {count} faults of {modules} modules, those that `nox -s mutation -- --most 40 --seed 1` draws: {sampled}.
Of modules that are not named here the page on mutation only counts them.

The list is `tools/survivors.toml`; a run that meets a survivor without a reason says so and fails. What the words mean:

| word | faults | reason |
| --- | --- | --- |
{kinds}
"""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A fault, wherever its line has gone."""

    module: str
    function: str
    fault: str
    line: str
    becomes: str

    @classmethod
    def of(cls, fault: "Fault") -> "Key":
        package, module = fault.described[:2]
        lines = fault.change.splitlines()
        line, becomes = (
            " / ".join(each[1:].strip() for each in lines if each.startswith(sign)) for sign in "-+"
        )
        return cls(f"{package}.{module}", fault.name, fault.kind, line, becomes)


@dataclass(frozen=True, slots=True)
class Known:
    """The entries.

    Attributes:
        modules: Whose sample was looked at: every survivor of it has an entry.
        reasons: The kind and the reason of each.
    """

    modules: Sequence[str]
    reasons: Mapping[Key, tuple[str, str]]


def read(text: str) -> Known:
    """Read the file of entries.

    Raises:
        ValueError: An entry has no reason, is of no known kind or of a module that was not looked at, or is there twice.
    """
    given = tomllib.loads(text)
    found: dict[Key, tuple[str, str]] = {}
    for entry in given.get("survivor", []):
        kind, reason = entry.pop("kind"), entry.pop("reason").strip()
        key = Key(**entry)
        if kind not in KINDS or not reason or key in found or key.module not in given["modules"]:
            raise ValueError(
                f"survivor must stand once, with a reason and a kind of {list(KINDS)}, got {key!r}"
            )
        found[key] = kind, reason
    return Known(given["modules"], found)


def unreasoned(survivors: Iterable["Fault"], known: Known) -> Iterator[str]:
    """Give an entry to complete for each survivor that has none."""
    for key in sorted({Key.of(fault) for fault in survivors} - known.reasons.keys()):
        fields = (f"{name} = {_quoted(getattr(key, name))}" for name in Key.__slots__)
        yield "\n".join(["[[survivor]]", *fields, 'kind = ""', 'reason = ""'])


def page(known: Known) -> str:
    """Give the page."""
    count = Counter(kind for kind, _ in known.reasons.values())
    kinds = "\n".join(f"| {word} | {count[word]} | {text} |" for word, text in KINDS.items())
    sampled = ", ".join(f"`{module}`" for module in sorted(known.modules))
    parts = [HEAD.format(count=count.total(), modules=len(known.modules), sampled=sampled, kinds=kinds)]
    for module, keys in groupby(sorted(known.reasons), key=lambda key: key.module):
        parts.append(f"## {module}\n\n| function | line | becomes | reason |\n| --- | --- | --- | --- |")
        parts += [_line(key, *known.reasons[key]) for key in keys]
        parts[-1] += "\n"
    return "\n".join(parts)


def _line(key: Key, kind: str, reason: str) -> str:
    return f"| `{key.function}` | {_code(key.line)} | {_code(key.becomes)} | {kind}: {reason} |"


def _code(text: str) -> str:
    return f"`` {text.replace('|', chr(92) + '|')} ``" if text else "nothing"


def _quoted(text: str) -> str:
    return "'" + text + "'" if "'" not in text else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
