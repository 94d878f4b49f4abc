"""What ``alkstore work --prometheus`` serves: the metrics of the worker's process and of its storage."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from alkstore.cli import UNREACHABLE
from alkstore.cli.storage import Failure
from alkstore.store import Store

if TYPE_CHECKING:  # an extra, which only this option needs
    from alkstore.prometheus import Metrics

__all__ = ["ADDRESS", "Address", "counting", "serving"]


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int


class _Address(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click alone
    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        if isinstance(value, Address):
            return value
        host, _, port = str(value).rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) > 65_535:
            self.fail(f"{value!r} is no address: PORT, or HOST:PORT", param, ctx)
        # Whoever can reach it can read the names of all queues: that is for the operator to want.
        return Address(host.strip("[]") or "127.0.0.1", int(port))


ADDRESS: Final = _Address()


def counting() -> "Metrics":
    """Make the metrics, beside what the application has in the same registry.

    Raises:
        UsageError: The extra is missing, or the application counts already.
    """
    try:
        from alkstore.prometheus import Metrics
    except ModuleNotFoundError as error:
        raise click.UsageError(f"--prometheus: {error}") from error
    try:
        return Metrics()
    except ValueError as error:
        raise click.UsageError(
            "--prometheus: the worker's module has an alkstore.prometheus.Metrics of its own; serve that one"
        ) from error


@contextmanager
def serving(address: Address, metrics: "Metrics", store: Store) -> Iterator[None]:
    """Serve the metrics, and the gauges of an open store, while the block runs.

    Raises:
        Failure: The address cannot be listened on.
    """
    from prometheus_client import start_http_server

    with metrics.gauges(store):
        try:
            server, thread = start_http_server(address.port, address.host)
        except OSError as error:
            raise Failure(f"--prometheus {address.host}:{address.port}: {error}", UNREACHABLE) from error
        try:
            host = f"[{address.host}]" if ":" in address.host else address.host
            click.echo(f"metrics: http://{host}:{server.server_port}/metrics", err=True)
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
