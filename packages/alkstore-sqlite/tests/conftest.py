import sqlite3
from collections.abc import Iterator

import pytest
from tables import with_tables


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = with_tables()
    yield connection
    connection.close()
