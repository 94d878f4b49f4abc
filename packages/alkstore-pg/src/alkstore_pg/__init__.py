"""The PostgreSQL engine of alkstore: ``PgStore("postgresql://…")``, or ``alkstore.open("postgresql://…")``."""
