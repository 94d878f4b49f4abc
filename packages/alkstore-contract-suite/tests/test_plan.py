"""Which cases there are, which are left out and why, and in which order they run."""

from dataclasses import replace

import pytest

from alkstore_contract_suite import rows
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.contract import promises
from alkstore_contract_suite.factory import Capability, Missing, Planned, Supported, Unsupported
from alkstore_contract_suite.in_process import InProcessColumn
from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.plan import Case, Selection, SelectionError, ordered, plan, settled
from alkstore_contract_suite.row import CAPABILITIES, Row

EVERYTHING = Selection()


async def function(ctx: Context) -> None:
    """A row that is planned and never run."""


def a_row(
    id: str,
    *,
    modes: tuple[str, ...] = ("plain",),
    needs: tuple[str, ...] = (),
    depends: tuple[str, ...] = (),
    platform: tuple[str, ...] = (),
) -> Row:
    return Row(
        id=id,
        name=f"test_{id}",
        text="a promise",
        oracle="a look",
        modes=modes,
        needs=needs,
        kills=(),
        level="MUST",
        since="1.0",
        depends=depends,
        hints="",
        function=function,
        platform=platform,
    )


def a_column(*, omitted: dict[str, str] | None = None, **capabilities: Capability) -> InProcessColumn:
    return InProcessColumn(
        "toy",
        version="1",
        contract="1.0",
        capabilities={word: capabilities.get(word, Unsupported(f"no {word} here")) for word in CAPABILITIES},
        make_store=lambda clock, source: pytest.fail("nothing is opened"),
        omitted=omitted,
    )


class Away(InProcessColumn):
    def available(self) -> Missing:  # type: ignore[override]  # a column that cannot run here
        return Missing("set TOY_DSN")


def outcome_of(
    case: Case, column: InProcessColumn, selection: Selection = EVERYTHING
) -> tuple[Status, str] | None:
    found = settled(case, column, selection)
    return None if found is None else (found.status, found.reason)


def test_a_case_is_planned_for_every_mode() -> None:
    cases = plan([a_row("Q-01", modes=("plain", "reopen"))], a_column())

    assert [case.id for case in cases] == ["Q-01[toy-plain]::test_Q-01", "Q-01[toy-reopen]::test_Q-01"]


def test_what_the_engine_has_not_is_not_applicable_with_its_reason() -> None:
    case = Case(a_row("Q-01", needs=("sql",)), "toy", "plain")

    assert outcome_of(case, a_column()) == (Status.NOT_APPLICABLE, "sql: no sql here")


def test_what_is_planned_is_not_applicable_with_the_plan() -> None:
    case = Case(a_row("Q-01", needs=("joins",)), "toy", "plain")

    assert outcome_of(case, a_column(joins=Planned("later"))) == (
        Status.NOT_APPLICABLE,
        "joins is planned: later",
    )


def test_what_tries_an_absence_is_not_applicable_where_it_is_there() -> None:
    case = Case(replace(a_row("FACTORY-12"), lacks=("sql",)), "toy", "plain")

    assert outcome_of(case, a_column()) is None
    assert outcome_of(case, a_column(sql=Planned("later"))) is None
    assert outcome_of(case, a_column(sql=Supported())) == (
        Status.NOT_APPLICABLE,
        "sql is there, and other rows show it",
    )


@pytest.mark.parametrize("word", CAPABILITIES)
def test_a_capability_more_takes_no_row_of_the_contract_away(word: str) -> None:
    cases = [case for case in plan(rows.registered(), a_column()) if not case.row.is_factory]

    def run_on(column: InProcessColumn) -> set[str]:
        return {case.id for case in cases if outcome_of(case, column) is None}

    assert run_on(a_column()) <= run_on(a_column(omitted=None, **{word: Supported()}))


@pytest.mark.parametrize(
    ("mode", "need"),
    [
        ("second", "multi_process"),
        ("reopen", "durable"),
        ("crash-drop", "durable"),
        ("crash-kill", "durable"),
    ],
)
def test_a_mode_needs_what_it_implies(mode: str, need: str) -> None:
    case = Case(a_row("Q-01", modes=(mode,)), "toy", mode)

    assert outcome_of(case, a_column()) == (Status.NOT_APPLICABLE, f"{need}: no {need} here")
    assert outcome_of(case, a_column(omitted=None, **{need: Supported()})) is None


def test_what_the_platform_has_not_is_not_applicable_with_its_reason() -> None:
    case = Case(a_row("Q-01", platform=("threads",)), "toy", "plain")

    assert settled(case, a_column(), EVERYTHING, absent={"fork": "no fork"}) is None
    found = settled(case, a_column(), EVERYTHING, absent={"threads": "no threads"})
    assert found is not None
    assert (found.status, found.reason) == (Status.NOT_APPLICABLE, "no threads")


def test_processes_that_the_platform_cannot_fork_are_not_tested_for_the_engine_may_have_them() -> None:
    case = Case(a_row("Q-01", modes=("process",)), "toy", "process")

    found = settled(case, a_column(multi_process=Supported()), EVERYTHING, absent={"fork": "no fork"})

    assert found is not None
    assert (found.status, found.reason) == (Status.NOT_TESTED, "no fork")


def test_an_omitted_row_is_run_all_the_same_to_see_whether_it_could_be_expressed() -> None:
    case = Case(a_row("Q-01"), "toy", "plain")

    assert outcome_of(case, a_column(omitted={"Q-01": "no queues"})) is None


def test_everything_of_a_column_that_cannot_run_here_is_not_tested() -> None:
    made = a_column()
    column = Away(
        "toy", version="1", contract="1.0", capabilities=made.capabilities, make_store=made._make_store
    )

    assert outcome_of(Case(a_row("Q-01"), "toy", "plain"), column) == (
        Status.NOT_TESTED,
        "not available here: set TOY_DSN",
    )


def test_a_selection_leaves_out_the_rest_but_never_the_factorys_rows() -> None:
    selection = Selection.read(["Q-0*,LOCK-01"], ["plain"], [a_row("FACTORY-01")])

    assert outcome_of(Case(a_row("Q-02"), "toy", "plain"), a_column(), selection) is None
    assert outcome_of(Case(a_row("FACTORY-01"), "toy", "boundary"), a_column(), selection) is None
    assert outcome_of(Case(a_row("Q-02"), "toy", "boundary"), a_column(), selection) == (
        Status.NOT_TESTED,
        "not selected",
    )
    assert outcome_of(Case(a_row("Q-12"), "toy", "plain"), a_column(), selection) == (
        Status.NOT_TESTED,
        "not selected",
    )


def test_smoke_is_one_test_of_each_row_and_no_machine() -> None:
    dear = a_row("Q-01", modes=("process", "plain"))
    cheap = replace(a_row("Q-01", modes=("plain", "reopen")), name="cheap")
    later = replace(cheap, name="later")
    machine = replace(a_row("MODEL-QUEUE"), machine="queue")
    known = [a_row("FACTORY-01", modes=("plain", "reopen")), dear, cheap, later, machine]

    smoke = Selection.read([], [], known, is_smoke=True)

    assert [case.id for case in plan(known, a_column()) if smoke.has(case.row, case.mode)] == [
        "FACTORY-01[toy-plain]::test_FACTORY-01",
        "FACTORY-01[toy-reopen]::test_FACTORY-01",
        "Q-01[toy-plain]::cheap",
    ]
    assert smoke.is_partial


def test_smoke_has_each_row_of_the_contract() -> None:
    smoke = Selection.read([], [], rows.registered(), is_smoke=True)

    assert sorted(id for id, _, _ in smoke.picked) == sorted(promises())


def test_smoke_may_be_narrowed() -> None:
    known = [a_row("Q-01"), a_row("Q-02")]

    smoke = Selection.read(["Q-02"], [], known, is_smoke=True)

    assert [row.id for row in known if smoke.has(row, "plain")] == ["Q-02"]


@pytest.mark.parametrize(("rows", "modes"), [(["Q-99"], []), (["X*"], []), ([], ["sideways"])])
def test_a_selection_of_what_does_not_exist_is_refused(rows: list[str], modes: list[str]) -> None:
    with pytest.raises(SelectionError):
        Selection.read(rows, modes, [])


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_the_factorys_rows_come_first_and_a_row_after_those_it_depends_on(seed: int | None) -> None:
    rows = [
        a_row("Q-09", depends=("Q-06",)),
        a_row("Q-06", depends=("Q-01",)),
        a_row("Q-01"),
        a_row("FACTORY-01"),
    ]

    order = [case.row.id for case in ordered(plan(rows, a_column()), seed)]

    assert order == ["FACTORY-01", "Q-01", "Q-06", "Q-09"]


def test_a_seed_decides_the_order_of_the_rest() -> None:
    cases = plan([a_row(f"Q-{number:02}") for number in range(1, 20)], a_column())

    assert ordered(cases, None) == cases
    assert ordered(cases, 5) == ordered(cases, 5)
    assert ordered(cases, 5) != ordered(cases, 6)


def test_rows_that_depend_on_each_other_in_a_circle_are_refused() -> None:
    rows = [a_row("Q-01", depends=("Q-02",)), a_row("Q-02", depends=("Q-01",))]

    with pytest.raises(SelectionError, match="circle"):
        ordered(plan(rows, a_column()), None)
