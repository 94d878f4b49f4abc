"""The PostgreSQL engine of alkstore: ``PgStore("postgresql://…")``, or ``alkstore.open("postgresql://…")``."""

from alkstore_pg.engine import PgStore
from alkstore_pg.native import PgTx

__all__ = ["PgStore", "PgTx"]
