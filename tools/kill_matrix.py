"""Run the self-test and print docs/kill-matrix.md from what came out; ``--check`` only compares the page with what is declared.

The check runs nothing, so it takes a second: it finds a claim that the page does not show, one that nobody makes any more,
and a page that was written by hand.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from alkstore_contract_suite import broken, jobs, rows
from alkstore_contract_suite.row import MODEL_PREFIX, Row
from alkstore_contract_suite.selftest import of_the_checkout
from guarantees import areas, cell
from workspace import ROOT

__all__ = ["PAGE", "Claim", "claims", "main", "page", "shown"]

PAGE: Final = Path("docs", "kill-matrix.md")
"""Where the page stands, relative to the root."""

LINE: Final = re.compile(
    r"^\| (?P<row>[A-Z]+-\w+) \| `(?P<mutant>[\w-]+)` \| (?P<mode>[\w-]+) \| (?P<promise>.*) \| (?:`(?P<test>\w+)`)? ?\|$",
    re.MULTILINE,
)

HEAD: Final = """\
# The kill matrix

Written by `python tools/kill_matrix.py` from a run of the self-test: a change here is lost.

A test that cannot fail proves nothing, so the suite is tested too: by {engines} engines, each wrong in exactly one way, and by the
rows that must find what is wrong. A line is one such find. *Mode* is the first in which the row failed, *assertion* what the
assertion that failed says; an error that a row merely runs into finds nothing. Where a *test* stands it names the broken
engine itself, and found it itself; otherwise some test of the row did.

```console
$ pytest --alk-selftest                             # everything that is claimed, in about half a minute
$ pytest --alk-selftest --alk-mutant 'lock-*'       # only these
$ pytest --alk-selftest=full                        # every broken engine meets every row; `nox -s contract-soak` does so
```

It is red if a claim does not hold, if a row of the contract finds nothing, if nobody claims a broken engine or a row names one that
is not there, and if a test fails on an engine with nothing broken. The full one is red also for a broken engine that more
than {most} rows find, those about whole areas (`MODEL-…`) not counted, unless it says why: what everything trips over
proves nothing of any of them. Columns that are wrong, which an author may write as well as an engine, are tests of the
suite: each must lead to HARNESS NOT TRUSTWORTHY.

The engines stand in `packages/alkstore-contract-suite/tests/mutants`. `--alk-explain Q-09` shows what a row is held by, and
a failure of your engine names the broken engines that fail in the same place. The promises in full are
[the contract](contract.md), their tests [the guarantees](guarantees.md).
"""

TABLE: Final = "| row | broken engine | mode | assertion | test |\n| --- | --- | --- | --- | --- |\n"

MODEL: Final = "MODEL: whole areas at once"


class Claim(NamedTuple):
    """That a row, or one test of it, finds a broken engine."""

    row: str
    mutant: str
    test: str


def claims(known: Sequence[Row], kills: Mapping[str, Sequence[str]]) -> Sequence[Claim]:
    """Give what the page shows: what tests say, and what mutants say of rows in which no test names them.

    ``kills`` has for each mutant the rows that must find it.
    """
    named = [Claim(row.id, name, row.name) for row in known for name in row.kills]
    said = {(claim.row, claim.mutant) for claim in named}
    whole = [Claim(id, name, "") for name, ids in kills.items() for id in ids]
    return sorted([*named, *(claim for claim in whole if claim[:2] not in said)])


def shown(text: str) -> Mapping[Claim, tuple[str, str]]:
    """Read a page: the mode in which each claim held, and the assertion as it is written in a table."""
    return {
        Claim(found["row"], found["mutant"], found["test"] or ""): (found["mode"], found["promise"])
        for found in LINE.finditer(text)
    }


def page(contract: str, wanted: Iterable[Claim], found: Mapping[Claim, tuple[str, str]]) -> str:
    """Give the text of the page: a table for each area of the contract, then the rows about whole areas."""
    wanted = list(wanted)
    parts = [HEAD.format(engines=len({claim.mutant for claim in wanted}), most=broken.MOST_ROWS)]
    for area, title in [*areas(contract), (MODEL_PREFIX[:-1], MODEL.partition(": ")[2])]:
        lines = [_line(claim, *found[claim]) for claim in wanted if claim.row.startswith(f"{area}-")]
        if lines:
            parts.append(f"## {area}: {title}\n\n{TABLE}{''.join(lines)}")
    return "\n".join(parts)


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Write the page, or check it; gives the exit code."""
    contract = (root / "docs" / "contract.md").read_text("utf-8")
    path = root / PAGE
    known = rows.registered()
    wanted = claims(known, {mutant.name: mutant.kills for mutant in broken.load()[1]})
    if list(arguments) == ["--check"]:
        return _check(path, contract, wanted)
    tested = of_the_checkout(known, jobs=jobs.cores())
    code = tested.run()
    found = {
        Claim(kill.row, kill.mutant, kill.test): (kill.mode, cell(kill.promise)) for kill in tested.kills
    }
    if code == 0:
        path.write_text(page(contract, wanted, found), "utf-8")
    return code


def _check(path: Path, contract: str, wanted: Sequence[Claim]) -> int:
    text = path.read_text("utf-8") if path.is_file() else ""
    found = shown(text)
    problems = [f"{claim} is not shown" for claim in wanted if claim not in found]
    problems += [f"{claim} is nobody's any more" for claim in found if claim not in wanted]
    if not problems and page(contract, wanted, found) != text:
        problems = ["it was not written by this tool"]
    for problem in problems:
        print(f"{PAGE.as_posix()}: {problem}")
    if problems:
        print(f"{PAGE.as_posix()} is stale: run `python tools/kill_matrix.py`")
    return 1 if problems else 0


def _line(claim: Claim, mode: str, promise: str) -> str:
    test = f"`{claim.test}` " if claim.test else ""
    return f"| {claim.row} | `{claim.mutant}` | {mode} | {promise} | {test}|\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
