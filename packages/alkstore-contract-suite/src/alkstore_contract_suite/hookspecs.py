"""The hook by which a ``conftest.py`` registers a column."""

from alkstore_contract_suite.registry import Registrar

__all__ = ["pytest_alkstore_register"]


def pytest_alkstore_register(registry: Registrar) -> None:
    """Register columns: ``registry.register(column)``. Installed distributions use the entry-point group instead."""
