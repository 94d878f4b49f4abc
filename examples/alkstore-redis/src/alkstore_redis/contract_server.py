"""A throw-away Redis server for the column and the tests; it opens no port, and ends with the process that started it."""

import shutil
from collections.abc import Sequence

from redis import Redis
from redis.exceptions import RedisError

from alkstore_contract_suite.own_server import OwnServer

__all__ = ["Server", "available"]


def _program() -> str | None:
    return shutil.which("redis-server") or shutil.which("valkey-server")


def available() -> str | None:
    """None if there is a server on this machine; else what to install."""
    return None if _program() else "no redis-server on this machine: install the package redis-server"


class Server(OwnServer):
    """A server in a folder of its own, for the length of a block.

    Attributes:
        redis: A client past alkstore.
    """

    def __init__(self, *settings: str) -> None:
        super().__init__("redis")
        self.redis = Redis.from_url(self.url)
        self._settings = settings

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/socket"

    def command(self) -> Sequence[str]:
        folder = str(self.folder)
        return [
            str(_program()), "--dir", folder, "--unixsocket", f"{folder}/socket", "--port", "0",
            "--appendonly", "yes", "--appendfsync", "always", *self._settings,
        ]  # fmt: skip

    def is_ready(self) -> bool:
        try:
            return bool(self.redis.ping())
        except RedisError:
            return False

    def leave(self) -> None:
        self.redis.close()
