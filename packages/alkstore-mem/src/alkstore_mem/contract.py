"""The column of the mem engine in the contract suite."""

import random
from collections.abc import Mapping
from typing import Any, Final

import alkstore
from alkstore.testing import ManualClock
from alkstore_contract_suite.factory import Capability, Planned, Supported, Unsupported
from alkstore_contract_suite.in_process import InProcessColumn
from alkstore_contract_suite.registry import Registrar
from alkstore_mem import MemStore
from alkstore_mem.engine import OMITTED

__all__ = ["CAPABILITIES", "make_store", "register"]

CAPABILITIES: Final[Mapping[str, Capability]] = {
    "listen": Supported(),
    "joins": Planned("the join of a SQLAlchemy session comes with the PostgreSQL engine"),
    "durable": Unsupported("everything ends with the store"),
    "multi_process": Unsupported("a store is seen by its own process and by nothing else"),
    "sql": Unsupported("there is no database"),
    "reconnects": Unsupported("there is no connection that could be lost"),
    "notify_limit": Unsupported("a notify payload has no limit"),
    "schema": Unsupported("there are no tables"),
    "server": Unsupported("there is no server"),
    "watcher": Unsupported("no watcher is needed: whoever commits wakes whoever waits"),
    "poll_only": Unsupported("nothing is polled"),
    "migrations": Unsupported("there are no tables"),
}


def register(registry: Registrar) -> None:
    """Register the column; the entry point ``alkstore.contract_engines`` names this function."""
    registry.register(
        InProcessColumn(
            "mem",
            version=alkstore.__version__,
            contract="1.0",
            capabilities=CAPABILITIES,
            make_store=make_store,
            omitted=OMITTED,
        )
    )


def make_store(clock: ManualClock, source: random.Random, **options: Any) -> alkstore.Store:
    """Make an unopened store on a clock and a random source."""
    return MemStore(clock=clock, random=source, **options)
