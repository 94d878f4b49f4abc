"""The rows, one module an area; importing this package declares them all."""

import importlib
import pkgutil
from collections.abc import Sequence

from alkstore_contract_suite.contract import promises
from alkstore_contract_suite.row import registered

__all__ = ["missing", "registered"]

for _module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")


def missing() -> Sequence[str]:
    """Give the ids of the contract's rows that no function tests."""
    tested = {row.id for row in registered()}
    return [id for id in promises() if id not in tested]
