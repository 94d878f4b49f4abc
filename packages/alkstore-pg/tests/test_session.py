import pytest

from alkstore import InvalidArgument
from alkstore_pg.session import Schema, milliseconds


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("a\0b", "NUL"),
        ("\ud800", "UTF-8"),
        ("x" * 41, "40 bytes"),
        ("ä" * 21, "40 bytes"),
        ("a$alkstore$", "hold a \\$"),
        ("pg_mine", "PostgreSQL's own"),
        ("information_schema", "PostgreSQL's own"),
        (7, "text"),
        (None, "text"),
    ],
)
def test_a_name_that_cannot_be_a_schema_is_refused(name: object, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        Schema(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["alkstore", "x" * 40, "Mixed Case", 'quo"ted', "'); DROP TABLE job; --", "a\\b", "{schema}"]
)
async def test_a_statement_names_the_schema_whatever_is_in_its_name(name: str, dsn: str) -> None:
    import asyncpg

    schema = Schema(name)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"CREATE SCHEMA {schema.identifier}")
        await connection.execute(schema.render("CREATE SEQUENCE {schema}.event_offset"))
        rendered = schema.render("SELECT nextval({sequence}), {channel}, '{' || '}'")
        assert tuple(await connection.fetchrow(rendered) or ()) == (1, name, "{}")
    finally:
        await connection.close()


def test_a_statement_is_made_once() -> None:
    schema = Schema("alkstore")
    assert schema.render("SELECT {schema}.now()") is schema.render("SELECT {schema}.now()")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, 1), (0.0004, 1), (0.1, 100), (30.0, 30_000), (3e6, 2**31 - 1), (9e12, 2**31 - 1)],
)
def test_a_wait_is_one_that_lock_timeout_takes(seconds: float, expected: int) -> None:
    assert milliseconds(seconds) == expected
