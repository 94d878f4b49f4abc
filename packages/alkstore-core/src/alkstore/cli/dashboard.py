"""``alkstore dashboard``: the storage as a page, live, for a browser."""

import asyncio
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from alkstore.cli import UNREACHABLE
from alkstore.cli.storage import Failure, Storage, run, storage_options
from alkstore.stop import StopToken
from alkstore.worker.signals import listening

if TYPE_CHECKING:  # an extra, which only this command needs
    from alkstore.dashboard import Dashboard

__all__ = ["dashboard"]

PORT: Final = 8420

GRACE: Final = 3
"""Seconds that answers under way have when it is to end."""


@click.command(short_help="Show a storage in a browser, live.")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Listen there.  [default: 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    help=f"Listen on this port; 0 takes a free one.  [default: {PORT}]",
)
@click.option("--write", is_flag=True, help="Allow redriving and purging dead jobs.")
@click.option(
    "--token",
    envvar="ALKSTORE_DASHBOARD_TOKEN",
    metavar="TEXT",
    help="What one must know to log in: needed to listen beyond this machine.  [ALKSTORE_DASHBOARD_TOKEN]",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name under which browsers ask for it, beside localhost and addresses; may be given again.",
)
@storage_options
def dashboard(
    storage: Storage, host: str, port: int, write: bool, token: str | None, hosts: tuple[str, ...]
) -> None:
    """Show queues, jobs, streams, schedules and locks in a browser, until SIGTERM or Ctrl-C.

    It only looks, unless --write is given. A token on the command line can be read by every user of the machine: the
    variable is the place for it.
    """
    try:
        import uvicorn  # noqa: F401

        from alkstore.dashboard.guard import is_loopback
    except ModuleNotFoundError as error:
        needs = f"alkstore dashboard needs {error.name}: pip install 'alkstore-core[dashboard]'"
        raise click.UsageError(needs) from error
    if not token and not is_loopback(host):
        raise click.UsageError(
            f"--host {host}: whoever reaches it would see every job; set ALKSTORE_DASHBOARD_TOKEN to a secret of at "
            f"least 16 characters, such as {secrets.token_urlsafe(18)}"
        )
    run(_serve(storage, host, port, write, token or None, hosts))


async def _serve(
    storage: Storage, host: str, port: int, write: bool, token: str | None, hosts: tuple[str, ...]
) -> None:
    from alkstore.dashboard import Witness, app

    witness = Witness()
    async with storage.looked_at(observers=[witness]) as store:
        made = app(store, token=token, write=write, hosts=hosts, witness=witness)
        with _bound(host, port) as bound:
            shown = f"[{host}]" if ":" in host else host
            click.echo(f"dashboard: http://{shown}:{bound.getsockname()[1]}/{_said(write, token)}", err=True)
            await _run(made, bound)


def _said(write: bool, token: str | None) -> str:
    said = [
        *([] if write else ["read-only; --write allows changes"]),
        *(["it asks for the token"] if token else []),
    ]
    return f" ({'; '.join(said)})" if said else ""


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    try:
        made = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise Failure(f"cannot listen on {host}:{port}: {error}", UNREACHABLE) from error
    with made:
        yield made


async def _run(made: "Dashboard", bound: socket.socket) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(
            self,
        ) -> Iterator[None]:  # they are ours: uvicorn's end the process before the store is closed
            yield

    config = uvicorn.Config(
        made, log_level="warning", access_log=False, server_header=False, lifespan="off",
        timeout_graceful_shutdown=GRACE, ws="none",
    )  # fmt: skip
    server, stop, hurry = Server(config), StopToken(), asyncio.Event()

    def end() -> None:
        made.end()
        server.should_exit = True

    with listening(stop, hurry):
        forget = stop.subscribe(end)
        try:
            await server.serve(sockets=[bound])
        finally:
            forget()
