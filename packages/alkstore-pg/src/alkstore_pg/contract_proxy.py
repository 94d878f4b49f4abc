"""The suite's proxy before the server that a DSN names."""

import re
from typing import Final

from alkstore_contract_suite import proxy
from alkstore_contract_suite.proxy import Link, Target
from alkstore_pg import contract_dsn
from alkstore_pg.contract_dsn import Address

__all__ = ["Link", "Proxy", "listening"]

# UNLISTEN is in what a pool sends whenever it takes a connection back.
_LISTEN: Final = re.compile(rb"(?<!UN)LISTEN\b")


def listening(link: Link) -> bool:
    """Pick the links whose client has sent LISTEN."""
    return link.has_sent(_LISTEN)


class Proxy(proxy.Proxy):
    """Stands at a loopback port before the server that a DSN names.

    Example::

        async with Proxy(server.dsn) as proxy:
            connection = await asyncpg.connect(proxy.dsn())
            proxy.cut()
    """

    def __init__(self, dsn: str) -> None:
        super().__init__(_target(dsn))
        self._dsn = dsn

    def lead_to(self, dsn: str) -> None:
        """Lead who connects from now on to another server; the proxy's own DSN stays."""
        self.target = _target(dsn)

    def dsn(self, dsn: str | None = None) -> str:
        """The same database and user (by default those of the proxy's own DSN), through the proxy."""
        return contract_dsn.elsewhere(dsn or self._dsn, Address(*self.address))


def _target(dsn: str) -> Target:
    at = contract_dsn.address(dsn)
    return at.socket or (at.host, at.port)
