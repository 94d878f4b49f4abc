"""The ladder: the rows from the simplest on, the first broken promise, and what to write next."""

from collections.abc import Mapping, Sequence
from typing import Final

from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Case
from alkstore_contract_suite.row import MODES

__all__ = ["advice", "climb", "is_broken"]

AREAS: Final = (
    "FACTORY",
    "WAKE",
    "LOCK",
    "Q",
    "ADM",
    "STR",
    "TX",
    "SCHED",
    "OBX",
    "NAME",
    "PAY",
    "CLK",
    "DUR",
    "VER",
    "MODEL",
)
"""Each needs little beyond those before it; the rows about names, payloads and time go through every area."""

METHODS: Final = (
    "aclose",
    "watch",
    "notify",
    "take_lock",
    "renew_lock",
    "list_locks",
    "insert_jobs",
    "find_jobs",
    "claim_jobs",
    "settle_jobs",
    "count_jobs",
    "sweep_jobs",
    "purge_jobs",
    "append_events",
    "read_events",
    "read_head",
    "trim_events",
    "read_offsets",
    "move_offset",
    "begin",
    "is_open",
    "rollback",
    "commit",
    "abandon",
    "read_offset",
    "save_offset",
    "connection",
    "list_names",
    "put_schedule",
    "list_schedules",
    "delete_schedule",
    "fire_schedules",
)
"""The engine's methods in the order in which they are best written."""


def climb(cases: Sequence[Case]) -> list[Case]:
    """Give the order of a climb: engine by engine, area by area, the plain modes of a row first.

    A row that depends on another comes after it, wherever that one stands.
    """
    engines = list(dict.fromkeys(case.engine for case in cases))

    def place(case: Case) -> tuple[int, list[tuple[int, str]], int]:
        own = _place(case.row.id)
        row = max([[own], *([_place(id), own] for id in case.row.depends)])
        return engines.index(case.engine), row, MODES.index(case.mode)

    return sorted(cases, key=place)


def _place(id: str) -> tuple[int, str]:
    area = id.split("-")[0]
    return AREAS.index(area) if area in AREAS else len(AREAS), id


def is_broken(outcome: Outcome) -> bool:
    """Whether a climb ends here: a promise is broken, and not merely its method not yet written."""
    return outcome.status in (Status.FAIL, Status.INCONCLUSIVE) and not outcome.missing


def advice(climbed: Sequence[Case], outcomes: Mapping[Case, Outcome]) -> list[str]:
    """Say how far a climb came, and what is next: mend what is broken, or write a method."""
    ran = [(case, outcomes[case]) for case in climbed if case in outcomes]
    green = sum(outcome.status is Status.PASS for _, outcome in ran)
    waiting: dict[str, list[Case]] = {}
    for case, outcome in ran:
        if outcome.missing:
            waiting.setdefault(outcome.missing, []).append(case)
    count = sum(map(len, waiting.values()))
    lines = [f"ladder: {green} of {len(climbed)} cases green, {count} wait for methods that are not there"]
    for case, outcome in ran:
        if is_broken(outcome):
            return [*lines, *_next("mend", case), *_doubt(outcome)]
    if waiting:
        method = min(waiting, key=lambda name: METHODS.index(name) if name in METHODS else len(METHODS))
        cases = waiting[method]
        # What tests the factory goes through many methods, and is about none of them.
        first = next((case for case in cases if not case.row.is_factory), cases[0])
        return [*lines, *_next(f"write {method}, for which {len(cases)} cases wait; the first is", first)]
    return [*lines, "next: nothing; run the whole contract without the ladder"]


def _next(what: str, case: Case) -> list[str]:
    return [
        f"next: {what} {case.row.id} [{case.engine}, {case.mode}]: {case.row.text}",
        f"      alkstore-contract run --alk-explain {case.row.id}",
    ]


def _doubt(outcome: Outcome) -> list[str]:
    # A failure has a report of its own; of what could not be shown nobody has said why.
    if outcome.status is Status.INCONCLUSIVE:
        return [f"      it could not be shown: {outcome.reason}"]
    return []
