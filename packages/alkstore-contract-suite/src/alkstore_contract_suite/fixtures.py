"""Fixtures for an application's own tests: its code on every engine that it names, on a clock that the test moves.

A store belongs to the event loop in which it was opened, so these fixtures run in the loop of the very test that asks,
whichever that is: pytest-asyncio has one for each scope, and anyio's plugin its own. There is a fixture for each of them
below, and `store` and `store_factory` ask for the one that is the test's.
"""

import functools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import pytest
import pytest_asyncio

from alkstore import Store
from alkstore_contract_suite import columns
from alkstore_contract_suite.factory import Backend, Missing, StoreFactory

__all__ = ["alk_backend", "parameters", "store", "store_factory"]

ASYNCIO_PLUGINS: Final = ("asyncio", "pytest_asyncio.plugin")
"""Names under which pytest-asyncio may be loaded: its entry point's, and its module's."""

LOOP_SCOPES: Final = ("function", "class", "module", "package", "session")
ANYIO: Final = "anyio"


def parameters(config: pytest.Config) -> Sequence[Any]:
    """Give a pytest parameter for each engine; one that was not named and cannot run here is skipped, and says why."""
    backends = columns.backends(config)
    found = []
    for column in columns.of_applications(config):
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


@pytest.fixture
def store_factory(alk_backend: Backend, request: pytest.FixtureRequest) -> StoreFactory:
    """Empty storage for this test: ``await store_factory.open()``, ``await store_factory.advance(60)``."""
    factory: StoreFactory = request.getfixturevalue(f"_alk_factory_{_loop_of(request)}")
    return factory


@pytest.fixture
def store(store_factory: StoreFactory, request: pytest.FixtureRequest) -> Store:
    """An open store on empty storage, closed after the test."""
    opened: Store = request.getfixturevalue(f"_alk_store_{_loop_of(request)}")
    return opened


def _loop_of(request: pytest.FixtureRequest) -> str:
    """Give the name of the event loop in which the test that asks will run."""
    if "anyio_backend" in request.fixturenames:
        return ANYIO
    if not any(request.config.pluginmanager.hasplugin(name) for name in ASYNCIO_PLUGINS):
        pytest.fail(
            "fixtures 'store' and 'store_factory' need an event loop: load pytest-asyncio (-p pytest_asyncio.plugin where "
            "plugins are not loaded by themselves), or mark the test for anyio's plugin",
            pytrace=False,
        )
    mark = request.node.get_closest_marker("asyncio")
    wanted = mark and (mark.kwargs.get("loop_scope") or mark.kwargs.get("scope"))
    return str(wanted or request.config.getini("asyncio_default_test_loop_scope"))


def _in_loop(loop: str) -> None:
    """Add both fixtures for tests of one loop."""

    # pytest-asyncio writes the loop's scope on the function: each fixture needs one of its own.
    async def factory(alk_backend: Backend, request: pytest.FixtureRequest) -> AsyncIterator[StoreFactory]:
        async with alk_backend.scope(request.node.nodeid) as made:
            yield made

    async def opened(store_factory: StoreFactory) -> AsyncIterator[Store]:
        made = await store_factory.open()
        try:
            yield made
        finally:
            await made.aclose()

    for name, function in ((f"_alk_factory_{loop}", factory), (f"_alk_store_{loop}", opened)):
        make: Any = (
            pytest.fixture if loop == ANYIO else functools.partial(pytest_asyncio.fixture, loop_scope=loop)
        )
        globals()[name] = make(function)


for _loop in (*LOOP_SCOPES, ANYIO):
    _in_loop(_loop)
