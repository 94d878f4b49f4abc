"""What ``--alk-list`` and ``--alk-explain`` say."""

import fnmatch
from collections.abc import Sequence

from alkstore_contract_suite.contract import promises
from alkstore_contract_suite.row import Row

__all__ = ["explain", "listing"]


def listing(rows: Sequence[Row]) -> list[str]:
    """Give a line for every row: its id, its modes, what it needs, its tests."""
    lines: list[str] = []
    for id in dict.fromkeys([*promises(), *(row.id for row in rows)]):
        functions = [row for row in rows if row.id == id]
        modes = ", ".join(dict.fromkeys(mode for row in functions for mode in row.modes)) or "no test yet"
        needs = ", ".join(sorted({need for row in functions for need in row.needs}))
        lines.append(f"{id:<11} {len(functions):>2} tests  {modes}{f'  (needs {needs})' if needs else ''}")
    return lines


def explain(pattern: str, rows: Sequence[Row]) -> list[str]:
    """Give everything known of the rows that fit a pattern; nothing if none does."""
    lines: list[str] = []
    texts = {**{row.id: _about(row) for row in rows}, **promises()}
    for id in fnmatch.filter(texts, pattern):
        lines += [f"{id}  {texts[id]}", ""]
        for row in rows:
            if row.id == id:
                lines += [*_function(row), ""]
    return lines


def _function(row: Row) -> list[str]:
    facts = {
        "promise": row.text,
        "oracle": row.oracle,
        "modes": ", ".join(row.modes),
        "level": f"{row.level}, since contract {row.since}",
        "needs": ", ".join(row.needs),
        "lacks": ", ".join(row.lacks),
        "platform": ", ".join(row.platform),
        "depends": ", ".join(row.depends),
        "fails on": ", ".join(row.kills),
        "look at": row.hints,
    }
    return [f"  {row.name}", *(f"    {label:<9} {text}" for label, text in facts.items() if text)]


def _about(row: Row) -> str:
    return "a row about the author's factory" if row.is_factory else "a row about a whole area and its model"
