"""The hook by which an engine's distribution makes itself known, and what it says about itself."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pluggy

if TYPE_CHECKING:  # the store imports what imports this module
    from alkstore.diagnosis import Diagnosis
    from alkstore.migrations import Migration
    from alkstore.store import Store

__all__ = ["GROUP", "EngineRegistration", "alkstore_engine", "hookimpl", "hookspec"]

GROUP: Final = "alkstore"
"""The entry-point group, and the name of the pluggy project."""

hookspec: Final = pluggy.HookspecMarker(GROUP)
hookimpl: Final = pluggy.HookimplMarker(GROUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRegistration:
    """What an engine says about itself; read by `alkstore.open` and by the contract suite.

    Attributes:
        schemes: Lower-case URL schemes that it opens, every spelling of them (``sqlite``, ``sqlite+aiosqlite``).
        open: Makes an unopened store of a URL (its scheme in lower case) and the options given.
        package: The distribution that a message tells people to install or upgrade.
        contract_version: The contract that it was built for, as text: its own copy, not core's constant.
        capabilities: ``durable``, ``multi_process``, ``sql``, ``listen``, ``reconnects``, ``notify_limit`` and the
            like. True or a number: it has it. False or a text that says why: it has not.
        options: Names of its own options, beside those that every engine takes.
        durable: Storage outlives the process; if it does not, opening by URL logs a warning.
        omitted: Row id to the reason why this engine cannot express that row.
        migrate: Brings the storage of a URL up to date, as opening does, and gives what that took, in order; None where
            nothing is migrated. It gets what ``open`` gets.
        migration_sql: Gives as a script what ``migrate`` would do, empty if that is nothing, and changes nothing. With a
            third argument, a role's name, also what lets that role use the storage, and no more; `InvalidArgument`
            where there are no roles.
        examine: Looks at what the engine alone can see of a storage's state (its size, what holds it up), and changes
            nothing; None where there is nothing to see. It gets what ``open`` gets; `DatabaseError` where it cannot look.

    Rows: VER-02.
    """

    schemes: tuple[str, ...]
    open: "Callable[[str, Mapping[str, object]], Store]"
    package: str
    contract_version: str
    durable: bool
    capabilities: Mapping[str, bool | int | str | None] = field(default_factory=dict)
    options: frozenset[str] = frozenset()
    omitted: Mapping[str, str] = field(default_factory=dict)
    migrate: "Callable[[str, Mapping[str, object]], Awaitable[Sequence[Migration]]] | None" = None
    migration_sql: "Callable[[str, Mapping[str, object], str | None], Awaitable[str]] | None" = None
    examine: "Callable[[str, Mapping[str, object]], Awaitable[Diagnosis]] | None" = None


@hookspec
def alkstore_engine() -> EngineRegistration:  # type: ignore[empty-body]  # a specification has no body
    """Describe the engine of this distribution. Called once a process; does no I/O and imports no more than it must."""
