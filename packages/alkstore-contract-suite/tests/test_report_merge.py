"""Several reports become one, and two reports are told apart."""

import pytest
from made_reports import a_cell, a_failure, a_report, an_engine

from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.report_diff import difference
from alkstore_contract_suite.report_merge import merged
from alkstore_contract_suite.report_reading import headings
from alkstore_contract_suite.report_values import ReportError
from alkstore_contract_suite.verdict import Verdict


def test_engines_of_several_runs_stand_side_by_side() -> None:
    ours = a_report(an_engine("toy", a_cell("Q-01"), python="3.12.1"), an_engine("mem", a_cell("Q-01")))
    theirs = a_report(an_engine("toy", a_failure("Q-02"), python="3.11.9"))

    whole = merged([ours, theirs])

    assert headings(whole.engines) == ["mem", "toy, Python 3.11.9", "toy, Python 3.12.1"]
    assert [row.id for row in whole.rows] == ["Q-01", "Q-02"]
    assert [engine.cells for engine in whole.engines] == [
        ours.engines[1].cells,
        theirs.engines[0].cells,
        ours.engines[0].cells,
    ]


def test_a_column_is_named_by_what_tells_it_from_its_likes_alone() -> None:
    engines = [
        an_engine("pg", a_cell("Q-01"), storage="PostgreSQL 15"),
        an_engine("pg", a_cell("Q-01"), storage="PostgreSQL 18"),
        an_engine("sqlite", a_cell("Q-01"), storage="SQLite 3"),
    ]

    assert headings(engines) == ["pg, PostgreSQL 15", "pg, PostgreSQL 18", "sqlite"]


def test_runs_that_cannot_be_told_apart_are_not_merged() -> None:
    one = a_report(an_engine("toy", a_cell("Q-01")))

    with pytest.raises(ReportError, match=r"cannot be told apart: toy 1\.2 3\.11\.9 Linux x86_64"):
        merged([one, one])


def test_reports_of_different_contracts_are_not_merged() -> None:
    reports = [a_report(contract="1.0"), a_report(contract="1.1")]

    with pytest.raises(ReportError, match=r"these are of 1\.0, 1\.1"):
        merged(reports)


def test_a_cell_that_fails_now_is_worse_and_one_that_passes_now_is_better() -> None:
    old = a_report(an_engine("toy", a_cell("Q-01"), a_failure("Q-02"), a_cell("Q-03")))
    new = a_report(an_engine("toy", a_failure("Q-01", "lost"), a_cell("Q-02"), a_cell("Q-03")))

    found = difference(old, new)

    assert found.worse == ["toy: Q-01 plain PASS → FAIL: lost"]
    assert found.better == ["toy: Q-02 plain FAIL → PASS"]
    assert found.lines()[-1] == "1 worse, 1 better"


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        (Status.PASS, Status.NOT_APPLICABLE, "worse"),
        (Status.PASS, Status.NOT_TESTED, "worse"),
        (Status.NOT_APPLICABLE, Status.FAIL, "worse"),
        (Status.NOT_TESTED, Status.INCONCLUSIVE, "worse"),
        (Status.BLOCKED, Status.PASS, "better"),
        (Status.INCONCLUSIVE, Status.PASS, "better"),
        (Status.FAIL, Status.XFAIL, "other"),
        (Status.FAIL, Status.BLOCKED, "other"),
    ],
)
def test_a_change_of_status_has_a_direction(before: Status, after: Status, place: str) -> None:
    verdict = Verdict.INCOMPLETE
    old = a_report(an_engine("toy", a_cell("Q-01", before), verdict=verdict))
    new = a_report(an_engine("toy", a_cell("Q-01", after), verdict=verdict))

    found = difference(old, new)

    assert [word for word in ("worse", "better", "other") if getattr(found, word)] == [place]


def test_a_row_that_is_new_and_red_is_worse_by_the_verdict() -> None:
    old = a_report(an_engine("toy", a_cell("Q-01"), a_cell("Q-02")))
    new = a_report(an_engine("toy", a_cell("Q-01"), a_failure("Q-03")))

    found = difference(old, new)

    assert found.worse == ["toy: CONFORMANT → NOT CONFORMANT"]
    assert found.other == ["toy: Q-03 plain is new, FAIL: no id twice", "toy: Q-02 plain is gone"]


def test_an_engine_that_is_gone_is_worse_and_a_new_one_is_not() -> None:
    old = a_report(an_engine("toy", a_cell("Q-01")))
    new = a_report(an_engine("mem", a_failure("Q-01")))

    found = difference(old, new)

    assert found.worse == ["toy 1.2 3.11.9 Linux x86_64: no longer there"]
    assert found.other == ["mem: new, NOT CONFORMANT"]


def test_columns_are_compared_with_the_one_that_is_most_like_them() -> None:
    old = a_report(
        an_engine("pg", a_cell("Q-01"), storage="PostgreSQL 15"),
        an_engine("pg", a_failure("Q-01"), storage="PostgreSQL 18"),
    )
    new = a_report(
        an_engine("pg", a_failure("Q-01"), storage="PostgreSQL 18", version="1.3"),
        an_engine("pg", a_cell("Q-01"), storage="PostgreSQL 15", version="1.3", python="3.11.10"),
    )

    assert difference(old, new).lines() == ["0 worse, 0 better"]
