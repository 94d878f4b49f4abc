"""The PostgreSQL engine of alkstore: ``PgStore("postgresql://…")``, or ``alkstore.open("postgresql://…")``."""

from alkstore_pg.native import PgTx
from alkstore_pg.store import PgStore

__all__ = ["PgStore", "PgTx"]
