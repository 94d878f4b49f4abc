"""The contract that the suite carries is the one that the project publishes, and every row of it has a test."""

from pathlib import Path

import pytest

from alkstore_contract_suite import CONTRACT_VERSION, contract, rows

PUBLISHED = Path(__file__).parents[3] / "docs" / "contract.md"


def test_the_suite_carries_the_published_contract() -> None:
    carried = Path(contract.__file__).with_name("contract.md").read_text("utf-8")

    assert carried == PUBLISHED.read_text("utf-8")


def test_the_stamp_is_the_version_in_the_contracts_title() -> None:
    title = PUBLISHED.read_text("utf-8").splitlines()[0]

    assert title == f"# The alkstore contract, version {CONTRACT_VERSION}"


def test_every_line_that_begins_with_an_id_is_read_as_a_row() -> None:
    begun = [line for line in PUBLISHED.read_text("utf-8").splitlines() if line.startswith("- ")]

    assert len(contract.promises()) == len(begun)


def test_no_row_of_the_contract_is_without_a_test() -> None:
    assert rows.missing() == []


@pytest.mark.parametrize(
    "area", ["NAME", "PAY", "WAKE", "STR", "Q", "LOCK", "SCHED", "OBX", "TX", "CLK", "ADM", "DUR", "VER"]
)
def test_ids_of_an_area_are_numbered_without_a_gap(area: str) -> None:
    numbers = [int(id.split("-")[1]) for id in contract.promises() if id.split("-")[0] == area]

    assert numbers == list(range(1, len(numbers) + 1))
