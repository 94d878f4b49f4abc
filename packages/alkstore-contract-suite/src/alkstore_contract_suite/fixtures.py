"""Fixtures for an application's own tests: its code on every registered engine, on a clock that the test moves."""

import functools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import pytest_asyncio

from alkstore import Store
from alkstore_contract_suite import columns
from alkstore_contract_suite.factory import Backend, Missing, StoreFactory

__all__ = ["alk_backend", "parameters", "store", "store_factory"]


def parameters(config: pytest.Config) -> Sequence[Any]:
    """Give a pytest parameter for each engine; one that cannot run here is skipped, and says why."""
    backends = columns.backends(config)
    found = []
    for column in columns.chosen(config):
        missing = column.available()
        marks = [pytest.mark.skip(reason=missing.advice)] if isinstance(missing, Missing) else []
        found.append(pytest.param(functools.partial(backends.of, column), id=column.name, marks=marks))
    return found


@pytest.fixture
def alk_backend(request: pytest.FixtureRequest) -> Backend:
    """The backend of the engine that this test runs on; one test becomes one for each engine."""
    # Started outside of any event loop, because it outlives the test's.
    start: Callable[[], Backend] = request.param
    return start()


@pytest_asyncio.fixture
async def store_factory(alk_backend: Backend, request: pytest.FixtureRequest) -> AsyncIterator[StoreFactory]:
    """Empty storage for this test: ``await store_factory.open()``, ``await store_factory.advance(60)``."""
    async with alk_backend.scope(request.node.nodeid) as factory:
        yield factory


@pytest_asyncio.fixture
async def store(store_factory: StoreFactory) -> AsyncIterator[Store]:
    """An open store on empty storage, closed after the test."""
    opened = await store_factory.open()
    try:
        yield opened
    finally:
        await opened.aclose()
