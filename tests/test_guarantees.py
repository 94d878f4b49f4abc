"""The table of guarantees is what the rows say, and no page cites a row that does not exist."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import guarantees
from alkstore import Store
from alkstore_contract_suite import rows
from alkstore_contract_suite.contract import promises
from alkstore_contract_suite.factory import Capability, EngineColumn, Planned, Supported, Unsupported
from alkstore_contract_suite.in_process import InProcessColumn
from alkstore_contract_suite.row import CAPABILITIES, Row

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = (ROOT / "docs" / "contract.md").read_text("utf-8")
GENERATED = (ROOT / guarantees.PAGE, ROOT / "docs" / "contract.md")
PAGES = sorted(set(ROOT.glob("docs/**/*.md")) - set(GENERATED))

CITED = re.compile(r"\b(?:NAME|PAY|WAKE|STR|Q|LOCK|SCHED|OBX|TX|CLK|ADM|DUR|VER)-\d\d\b")
LINKED = re.compile(r"\[([A-Z]+-\d\d)\](?!:)")
DEFINED = re.compile(r"^\[([A-Z]+-\d\d)\]: (\S+)$", re.MULTILINE)


def row(id: str, text: str = "It holds.", modes: Sequence[str] = ("plain",)) -> Row:
    async def function(_: object) -> None: ...

    return Row(
        id=id,
        name="it_holds",
        text=text,
        oracle="what is read back",
        modes=tuple(modes),
        needs=(),
        kills=(),
        level="MUST",
        since="1.0",
        depends=(),
        hints="",
        function=function,
    )


def column(
    name: str, capabilities: Mapping[str, Capability], omitted: Mapping[str, str] | None = None
) -> EngineColumn:
    def make_store(*_: object, **__: object) -> Store:
        raise AssertionError("a page opens no store")

    return InProcessColumn(
        name,
        version="0",
        contract="1.0",
        capabilities=capabilities,
        make_store=make_store,
        omitted=omitted or {},
    )


def test_the_page_is_what_the_rows_say() -> None:
    assert guarantees.main(["--check"]) == 0, "run `python tools/guarantees.py`"


def test_a_stale_page_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "contract.md").write_text("### Q: queues\n", "utf-8")
    (tmp_path / guarantees.PAGE).write_text("old\n", "utf-8")

    assert guarantees.main(["--check"], tmp_path) == 1
    assert capsys.readouterr().out == "docs/guarantees.md is stale: run `python tools/guarantees.py`\n"
    assert guarantees.main([], tmp_path) == 0
    assert guarantees.main(["--check"], tmp_path) == 0


def test_a_row_is_one_line_and_its_text_cannot_break_the_table() -> None:
    text = guarantees.page("### Q: queues\n", [row("Q-09", text="a | b\nand *c*", modes=("plain", "second"))])

    assert "| Q-09 | a \\| b and \\*c\\* | what is read back | plain, second |\n" in text


def test_what_an_engine_leaves_out_stands_beside_what_the_others_do() -> None:
    supported = dict.fromkeys(CAPABILITIES, Supported())
    columns = [
        column("whole", supported),
        column(
            "part",
            supported | {"sql": Unsupported("no | table"), "joins": Planned("in 2")},
            omitted={"TX-09": "one writer"},
        ),
    ]

    text = guarantees.page("### Q: queues\n", [], columns)

    assert "| | whole | part |\n| --- | --- | --- |\n" in text
    assert "| sql | yes | no: no \\| table |\n" in text
    assert "| joins | yes | planned: in 2 |\n" in text
    assert "| durable | yes | yes |\n" in text
    assert text.count("| TX-09 | yes | no: one writer |\n") == 1


def test_rows_without_a_test_are_named() -> None:
    text = guarantees.page("### VER: versions\n", [row("VER-02")])

    assert "No test yet: VER-01, VER-03.\n" in text


def test_every_row_of_the_contract_has_its_place_on_the_page() -> None:
    text = guarantees.page(CONTRACT, rows.registered())

    assert [id for id in promises() if id not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_cites_rows_that_exist_and_links_them_to_their_area(page: Path) -> None:
    text = page.read_text("utf-8")
    contract = "contract.md" if page.parent == ROOT / "docs" else "../contract.md"
    anchors = guarantees.anchors(CONTRACT)

    linked = set(LINKED.findall(text))

    assert set(CITED.findall(text)) <= set(promises())
    assert dict(DEFINED.findall(text)) == {id: f"{contract}#{anchors[id]}" for id in linked}
