"""What the suite wants to know of a schema, and what it makes of one: counted, examined, aged, copied elsewhere."""

from typing import Final

from alkstore_pg import schema as _schema
from alkstore_pg.contract_outsider import TABLES, Outsider, quoted
from alkstore_pg.contract_server import Server, available
from alkstore_pg.session import Schema

__all__ = ["age", "copied", "count", "examine", "touch"]

INDEXES: Final = """
SELECT suite.bt_index_check(index => c.oid, heapallindexed => true)
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_am AS a ON a.oid = c.relam
WHERE c.relkind = 'i' AND a.amname = 'btree'
    AND c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1)
"""

INVALID: Final = """
SELECT c.relname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_index AS i ON i.indexrelid = c.oid
WHERE NOT (i.indisvalid AND i.indisready)
    AND c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1)
"""

ORPHANS: Final = """
SELECT 'events of no stream', count(*) FROM {schema}.event WHERE stream NOT IN (SELECT id FROM {schema}.stream)
UNION ALL
SELECT 'positions in no stream', count(*) FROM {schema}.position WHERE stream NOT IN (SELECT id FROM {schema}.stream)
UNION ALL
SELECT 'jobs both alive and dead', count(*) FROM {schema}.job JOIN {schema}.dead USING (id)
"""

FUNCTIONS: Final = """
SELECT p.oid::regprocedure::text, regexp_replace(p.oid::regprocedure::text, '^.*\\.', '')
FROM pg_catalog.pg_proc AS p
WHERE p.pronamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1)
ORDER BY 1
"""

COLUMNS: Final = """
SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = $1 ORDER BY 1, 2
"""

FIRST: Final = "as version 1 made it"
"""A schema in which only the first migration was applied."""


def count(outsider: Outsider, schema: str) -> int:
    """Count the rows of a schema."""
    tables = [name for (name,) in outsider.run(TABLES, schema)]
    counts = (f"(SELECT count(*) FROM {quoted(schema)}.{quoted(name)})" for name in tables)
    return int(outsider.run(f"SELECT {' + '.join(counts)}")[0][0])


def examine(outsider: Outsider, schema: str) -> str | None:
    """Say what is wrong with a schema; None if nothing is."""
    found = [f"index {name} is invalid" for (name,) in outsider.run(INVALID, schema)]
    orphans = outsider.run(ORPHANS.replace("{schema}", quoted(schema)))
    found += [f"{number} {what}" for what, number in orphans if number]
    if outsider.run("SELECT FROM pg_catalog.pg_extension WHERE extname = 'amcheck'"):
        outsider.run(INDEXES, schema)  # raises what it finds
    return "; ".join(found) or None


def age(outsider: Outsider, schema: str, *, newer: bool) -> None:
    """Leave a schema as a newer version, or the oldest one, would have written it."""
    known, name = len(_schema.MIGRATIONS), quoted(schema)
    if newer:
        outsider.run(
            f"INSERT INTO {name}.migration (version, name, checksum, applied_at) VALUES ($1, 'from_the_future', '', 0)",
            known + 1,
        )
        return
    first = Schema(FIRST)
    outsider.run(f"CREATE SCHEMA {first.identifier}")
    for statement in _schema.MIGRATIONS[0].statements:
        outsider.run(first.render(statement))
    if outsider.run(COLUMNS, FIRST) != [
        row for row in outsider.run(COLUMNS, schema) if row[0] != "migration"
    ]:
        raise RuntimeError("later versions have other tables than version 1: say here how it left them")
    kept = {plain for _, plain in outsider.run(FUNCTIONS, FIRST)}
    for whole, plain in outsider.run(FUNCTIONS, schema):
        if plain not in kept:
            outsider.run(f"DROP FUNCTION {whole}")
    outsider.run(f"DELETE FROM {name}.migration WHERE version > 1")
    outsider.drop([FIRST])


def touch(outsider: Outsider, schema: str) -> None:
    """Do what an administrator may do under stores that are open: add a column, and build the indexes anew."""
    for (table,) in outsider.run(TABLES, schema):
        name = f"{quoted(schema)}.{quoted(table)}"
        outsider.run(
            f"ALTER TABLE {name} ADD COLUMN IF NOT EXISTS added_by_the_administrator integer DEFAULT 7"
        )
        outsider.run(f"REINDEX TABLE CONCURRENTLY {name}")


def copied(server: Server, dsn: str, schema: str) -> Server | None:
    """Bring a schema into a new server's database ``postgres``; None if there are no programs for one. The caller closes it.

    Cost: half a second.
    """
    if available(server.version, own=True) is not None:
        return None
    dumped = server.dump(dsn, schema)
    other = Server.start(server.version, own=True)
    try:
        other.restore(other.dsn, dumped)
    except BaseException:
        other.close()
        raise
    return other
