"""What the driver is told of arrays is what it would have asked for, so that it asks no more."""

import asyncpg

from alkstore_pg.arrays import teach
from alkstore_pg.contract_server import Server

VALUES = ([1, None, -(2**63)], [b"a\0b", None], [7, None], ["é", None, 'a "b", {c}'])
STATEMENT = "SELECT $1::bigint[], $2::bytea[], $3::integer[], $4::text[]"


async def answered(server: Server, *, taught: bool) -> tuple[list[object], list[str]]:
    connection = await asyncpg.connect(server.dsn)
    try:
        if taught:
            teach(connection)
        sent: list[str] = []
        with connection.query_logger(lambda logged: sent.append(logged.query)):
            row = await connection.fetchrow(STATEMENT, *VALUES)
            await connection.fetchval("SELECT 1")
        return list(row or ()), [query for query in sent if "typeinfo" in query]
    finally:
        await connection.close()


async def test_a_connection_that_was_told_of_arrays_does_not_ask_for_them(server: Server) -> None:
    _, asked = await answered(server, taught=True)

    assert asked == []


async def test_arrays_read_as_they_do_where_the_driver_asked(server: Server) -> None:
    told, _ = await answered(server, taught=True)
    plain, asked = await answered(server, taught=False)

    assert told == plain == [list(values) for values in VALUES]
    assert asked
