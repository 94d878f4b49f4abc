"""The columns that were registered, and the check that the suite can work with them."""

import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Final, Protocol, cast

import alkstore
from alkstore_contract_suite import CONTRACT_VERSION
from alkstore_contract_suite.contract import promises
from alkstore_contract_suite.factory import EngineColumn
from alkstore_contract_suite.row import CAPABILITIES, MODEL_PREFIX

__all__ = ["GROUP", "ColumnError", "Registrar", "Registry", "check_core", "load_entry_points"]

GROUP: Final = "alkstore.contract_engines"
"""The entry-point group: each names a function that takes the registry."""


class ColumnError(Exception):
    """A column cannot be run, and why; the author's to mend."""


class Registrar(Protocol):
    """What an author's hook or entry point gets."""

    def register(self, column: EngineColumn) -> None: ...


class Registry:
    """Every column by its name."""

    def __init__(self) -> None:
        self._columns: dict[str, EngineColumn] = {}

    @property
    def columns(self) -> Mapping[str, EngineColumn]:
        """The columns, in the order of registration."""
        return self._columns

    def register(self, column: EngineColumn) -> None:
        """Add a column.

        Raises:
            ColumnError: Its name is taken, it was built for another major version of the contract, or what it says
                about capabilities and omitted rows cannot be read.
        """
        where = f"column {column.name!r}"
        if column.name in self._columns:
            raise ColumnError(f"{where} is registered twice")
        if not column.name or not column.name.replace("_", "").isalnum():
            raise ColumnError(f"{where}: a name is letters, digits and '_'")
        _check_major(where, column.contract)
        unsaid = [word for word in CAPABILITIES if word not in column.capabilities]
        unknown = [word for word in column.capabilities if word not in CAPABILITIES]
        if unsaid or unknown:
            raise ColumnError(
                f"{where}: capabilities must say something of each of {', '.join(CAPABILITIES)}; "
                f"unsaid: {unsaid}, unknown: {unknown}"
            )
        strange = [id for id in column.omitted if id not in promises() and not id.startswith(MODEL_PREFIX)]
        if strange:
            raise ColumnError(f"{where} omits rows that the contract does not have: {strange}")
        self._columns[column.name] = column


def check_core() -> None:
    """Refuse to run beside a core of another major version. Rows: VER-01.

    Raises:
        ColumnError: The versions do not fit.
    """
    _check_major("alkstore-core", alkstore.CONTRACT_VERSION)


def load_entry_points(registry: Registry) -> Mapping[str, str]:
    """Let every installed distribution register its column; gives those that could not, each with the reason.

    A broken distribution must not keep the author of another one from working.
    """
    broken: dict[str, str] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        try:
            register = cast(Callable[[Registrar], None], point.load())
            register(registry)
        except Exception as error:  # an author's code, which may do anything
            broken[point.name] = f"entry point {point.name} = {point.value}: {_told(error)}"
    return broken


def _told(error: Exception) -> str:
    if isinstance(error, ColumnError):
        return str(error)
    advice = ""
    if isinstance(error, ImportError):
        advice = "; what a column needs is often an extra of its package, 'contract'"
    return f"{type(error).__name__}: {error}{advice}"


def _check_major(where: str, version: str) -> None:
    if version.split(".")[0] != CONTRACT_VERSION.split(".")[0]:
        raise ColumnError(
            f"{where} was built for contract {version}, this suite tests contract {CONTRACT_VERSION}; "
            "install the suite of the same major version"
        )
