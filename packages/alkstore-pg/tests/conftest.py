from collections.abc import Iterator

import pytest

from alkstore_pg.contract_server import Server, available, shared


@pytest.fixture(scope="session")
def server() -> Server:
    """The one server of this run; who stops one starts his own."""
    if (advice := available()) is not None:
        pytest.skip(advice)
    return shared()


@pytest.fixture
def dsn(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database."""
    name = f"test_{abs(hash(request.node.nodeid)):x}"
    yield server.create_database(name)
    server.drop_database(name)
