"""The PostgreSQL engine of alkstore: ``PgStore("postgresql://…")``, or ``alkstore.open("postgresql://…")``."""

from alkstore_pg.engine import PgStore

__all__ = ["PgStore"]
