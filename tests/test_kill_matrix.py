"""The page of kills shows what the rows and the broken engines claim, and is checked without running them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

import kill_matrix
from alkstore_contract_suite.row import Row
from kill_matrix import Claim, claims, page, shown
from workspace import ROOT

CONTRACT = "### Q: queues\n\n### LOCK: locks\n"


def row(id: str, name: str, kills: Sequence[str] = ()) -> Row:
    async def function(_: object) -> None: ...

    return Row(
        id=id,
        name=name,
        text="It holds.",
        oracle="what is read back",
        modes=("plain",),
        needs=(),
        kills=tuple(kills),
        level="MUST",
        since="1.0",
        depends=(),
        hints="",
        function=function,
    )


def stale(root: Path, text: str) -> int:
    (root / "docs").mkdir(exist_ok=True)
    (root / "docs" / "contract.md").write_text((ROOT / "docs" / "contract.md").read_text("utf-8"), "utf-8")
    (root / kill_matrix.PAGE).write_text(text, "utf-8")
    return kill_matrix.main(["--check"], root)


def published() -> str:
    return (ROOT / kill_matrix.PAGE).read_text("utf-8")


def test_the_page_shows_what_is_declared() -> None:
    assert kill_matrix.main(["--check"]) == 0, "run `python tools/kill_matrix.py`"


def test_a_claim_that_the_page_does_not_show_makes_it_stale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = next(line for line in published().splitlines(keepends=True) if line.startswith("| Q-09 "))

    assert stale(tmp_path, published().replace(line, "", 1)) == 1
    told = capsys.readouterr().out
    assert "row='Q-09'" in told
    assert "is not shown" in told
    assert "is stale: run `python tools/kill_matrix.py`" in told


def test_a_claim_that_nobody_makes_makes_the_page_stale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = next(line for line in published().splitlines(keepends=True) if line.startswith("| Q-09 "))
    invented = line.replace("| `", "| `not-", 1)

    assert stale(tmp_path, published().replace(line, line + invented, 1)) == 1
    assert "is nobody's any more" in capsys.readouterr().out


def test_a_page_written_by_hand_is_stale(tmp_path: Path) -> None:
    assert stale(tmp_path, published()) == 0
    assert stale(tmp_path, published().replace("by 2", "by 3", 1)) == 1
    assert stale(tmp_path, "") == 1


def test_a_test_that_names_a_mutant_speaks_for_its_row() -> None:
    known = [row("Q-01", "first", ["late"]), row("Q-01", "second", ["late"]), row("Q-02", "third")]

    assert claims(known, {"late": ["Q-01", "Q-02"]}) == [
        Claim("Q-01", "late", "first"),
        Claim("Q-01", "late", "second"),
        Claim("Q-02", "late", ""),
    ]


def test_what_a_page_shows_is_read_back_from_it() -> None:
    found = {
        Claim("LOCK-01", "lock-reentrant", "a_held_lock_is_refused"): ("second", r"a \| b \_c\_"),
        Claim("MODEL-LOCK", "lock-reentrant", ""): ("plain", "locks answer as the model does"),
        Claim("Q-01", "lifo", ""): ("crash-kill", "first in, first out"),
    }

    text = page(CONTRACT, sorted(found), found)

    assert shown(text) == found
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Q: queues",
        "## LOCK: locks",
        "## MODEL: whole areas at once",
    ]
