"""A row: one promise of the contract, the coroutine that tests it, and everything that the report says of it."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from alkstore_contract_suite import platform_needs
from alkstore_contract_suite.contract import promises

if TYPE_CHECKING:
    from alkstore_contract_suite.context import Context

__all__ = [
    "CAPABILITIES",
    "FACTORY_PREFIX",
    "MODEL_PREFIX",
    "MODES",
    "Row",
    "RowError",
    "drawn",
    "registered",
    "row",
]

MODES: Final = (
    "plain",
    "boundary",
    "concurrent",
    "second",
    "reopen",
    "crash-drop",
    "crash-kill",
    "process",
)

CAPABILITIES: Final = (
    "durable",
    "multi_process",
    "sql",
    "listen",
    "reconnects",
    "notify_limit",
    "joins",
    "schema",
    "server",
    "watcher",
    "poll_only",
    "migrations",
)

IMPLIED_NEEDS: Final = {
    "second": "multi_process",
    "process": "multi_process",
    "reopen": "durable",
    "crash-drop": "durable",
    "crash-kill": "durable",
}

FACTORY_PREFIX: Final = "FACTORY-"
"""Rows about what the author supplies, not about the engine; the contract does not list them."""

MODEL_PREFIX: Final = "MODEL-"
"""Rows about a whole area at once: drawn steps, compared with the model; the contract does not list them either."""

RowFunction: TypeAlias = Callable[["Context"], Awaitable[None]]


class RowError(Exception):
    """A row is declared wrongly: a fault of the suite, found when the rows are imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One test function of one row of the contract.

    Attributes:
        id: The row's id in the contract; several functions may share it, each with its own modes.
        text: The promise, in a sentence.
        oracle: What is looked at to know that the promise was kept.
        modes: How the promise is checked; one case for each.
        needs: Capabilities without which an engine cannot express this; "second" and the like imply theirs.
        lacks: Capabilities that a column must not have for this to mean anything: it tries what the column says is not there.
        kills: Names of broken engines on which this very function fails.
        depends: Rows without which this one says nothing; if one of them failed this one is BLOCKED.
        hints: What an engine's author may want to look at first.
        platform: What must be there for the promise to mean anything, of `platform_needs.NEEDS`.
        machine: The machine of `machines.exploring` that draws what is done; there is no function to await then.
        bare: The case begins with storage that nobody has opened yet; it opens its stores itself.
    """

    id: str
    name: str
    text: str
    oracle: str
    modes: tuple[str, ...]
    needs: tuple[str, ...]
    kills: tuple[str, ...]
    level: str
    since: str
    depends: tuple[str, ...]
    hints: str
    function: RowFunction
    bare: bool = False
    machine: str = ""
    platform: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def is_factory(self) -> bool:
        """Whether this row tests the author's factory."""
        return self.id.startswith(FACTORY_PREFIX)

    def needs_in(self, mode: str) -> tuple[str, ...]:
        """Give the capabilities without which an engine cannot express this row in this mode."""
        implied = IMPLIED_NEEDS.get(mode)
        return self.needs if implied is None or implied in self.needs else (*self.needs, implied)


_ROWS: dict[tuple[str, str], Row] = {}


def registered() -> Sequence[Row]:
    """Give every row function that has been imported, by id and then by order of declaration."""
    return sorted(_ROWS.values(), key=lambda each: each.id)


def row(
    id: str,
    *,
    text: str,
    oracle: str,
    modes: Sequence[str] = ("plain",),
    needs: Sequence[str] = (),
    kills: Sequence[str] = (),
    level: str = "MUST",
    since: str = "1.0",
    depends: Sequence[str] = (),
    hints: str = "",
    bare: bool = False,
    machine: str = "",
    platform: Sequence[str] = (),
    lacks: Sequence[str] = (),
) -> Callable[[RowFunction], RowFunction]:
    """Declare a coroutine function as a test of one row of the contract.

    The arguments are the fields of `Row`.

    Raises:
        RowError: The id is not in the contract, or the declaration cannot be read.
    """

    def declare(function: RowFunction) -> RowFunction:
        name = getattr(function, "__name__", "")
        declared = Row(
            id=id,
            name=name,
            text=text,
            oracle=oracle,
            modes=tuple(modes),
            needs=tuple(needs),
            kills=tuple(kills),
            level=level,
            since=since,
            depends=tuple(depends),
            hints=hints,
            function=function,
            bare=bare,
            machine=machine,
            platform=tuple(platform),
            lacks=tuple(lacks),
        )
        _check(declared)
        _ROWS[id, name] = declared
        return function

    return declare


def drawn(id: str, machine: str, *, name: str, **facts: Any) -> None:
    """Declare a machine as a test of a row; the other arguments are those of `row`.

    Raises:
        RowError: As `row`.
    """

    async def nothing_to_await(context: "Context") -> None:
        raise RowError(f"row {id} {name}: machine {machine!r} draws its own steps")

    nothing_to_await.__name__ = name
    row(id, machine=machine, **facts)(nothing_to_await)


def _check(declared: Row) -> None:
    where = f"row {declared.id} {declared.name}"
    if (declared.id, declared.name) in _ROWS:
        raise RowError(f"{where}: declared twice, give the second one another name")
    for id in (declared.id, *declared.depends):
        if id not in promises() and not id.startswith((FACTORY_PREFIX, MODEL_PREFIX)):
            raise RowError(f"{where}: the contract has no row {id!r}")
    if not inspect.iscoroutinefunction(declared.function):
        raise RowError(f"{where}: must be an async function of one Context")
    if not declared.text.strip() or not declared.oracle.strip():
        raise RowError(f"{where}: text and oracle must say something")
    if not declared.modes:
        raise RowError(f"{where}: needs at least one mode")
    _check_words(where, "mode", declared.modes, MODES)
    _check_words(where, "capability", declared.needs, CAPABILITIES)
    _check_words(where, "capability", declared.lacks, CAPABILITIES)
    if declared.lacks and not declared.is_factory:
        raise RowError(f"{where}: a capability may take no row of the contract away, so none may be lacked")
    _check_words(where, "platform need", declared.platform, platform_needs.NEEDS)
    _check_words(where, "level", (declared.level,), ("MUST", "SHOULD", "MAY"))


def _check_words(where: str, what: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    for word in given:
        if word not in known:
            raise RowError(f"{where}: unknown {what} {word!r}, known are {', '.join(known)}")
    if len(set(given)) != len(given):
        raise RowError(f"{where}: {what} named twice in {given!r}")
