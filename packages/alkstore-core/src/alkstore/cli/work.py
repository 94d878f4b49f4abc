"""``alkstore work``: a worker in this process, until it is told to stop."""

import asyncio
import dataclasses
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from functools import partial
from typing import Final

import click

from alkstore.cli import FAILED
from alkstore.cli.output import emit
from alkstore.cli.storage import (
    Storage,
    failure,
    is_given,
    json_option,
    optional_storage,
    run,
    stopped,
)
from alkstore.cli.values import SECONDS
from alkstore.cli.waiting import unless_stopped
from alkstore.cli.work_exec import Program, program
from alkstore.cli.work_metrics import ADDRESS, Address, counting, serving
from alkstore.cli.work_target import load, made
from alkstore.errors import AlkstoreError
from alkstore.stop import StopToken
from alkstore.store import Store
from alkstore.worker import Counts, Worker, handle
from alkstore.worker.signals import listening

__all__ = ["work"]

GRACE: Final = 30

LEVELS: Final = ("debug", "info", "warning", "error")


@click.command(short_help="Work on jobs until told to stop.")
@click.argument("target", metavar="MODULE:WORKER|QUEUE")
@click.option("--exec", "command", metavar="CMD", help="Run CMD for each job of QUEUE.")
@click.option(
    "--concurrency", type=click.IntRange(min=1), help="With --exec: programs at once.  [default: 1]"
)
@click.option("--timeout", type=SECONDS, help="With --exec: how long one may run.  [default: for ever]")
@click.option(
    "--grace", type=SECONDS, help="With --exec: how long they may go on at a stop.  [default: 30 s]"
)
@click.option("--until-idle", is_flag=True, help="End once nothing is ready.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    help="What is told on standard error.  [default: info]",
)
@click.option(
    "--prometheus",
    "address",
    type=ADDRESS,
    metavar="[HOST:]PORT",
    help="Serve metrics there.  [HOST: 127.0.0.1]",
)
@optional_storage
@json_option
def work(
    storage: Storage | None,
    target: str,
    command: str | None,
    concurrency: int | None,
    timeout: float | None,
    grace: float | None,
    until_idle: bool,
    log_level: str,
    address: Address | None,
    as_json: bool,
) -> None:
    """Work on jobs until SIGTERM or Ctrl-C: a second one ends it at once.

    MODULE:WORKER names an alkstore.worker.Worker, or a function that gives one; a function with a parameter gets a store,
    opened on --url.

    With --exec, CMD is run for each job of QUEUE, without a shell. It gets the payload on standard input, and
    ALKSTORE_JOB_ID, ALKSTORE_ATTEMPT, ALKSTORE_MAX_ATTEMPTS, ALKSTORE_QUEUE and ALKSTORE_HEADERS (a JSON object) in its
    environment. Exit status 0: the job is done. 65: it is dead at once. Any other, as 75, or a signal: it is tried again.
    """
    if command is None:
        _refuse_in_vain({"concurrency": concurrency, "timeout": timeout, "grace": grace})
        value = _load(target)
    else:
        executed = Program(program(command), as_json=as_json)
        value = _executing(target, executed, concurrency=concurrency, timeout=timeout, grace=grace)
    if not logging.getLogger().handlers:  # the application's own, which its module has set up, are left alone
        logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    is_named = any(map(is_given, ("url", "schema", "options")))
    metrics = None if address is None else counting()
    making = made(value, target, storage, is_named=is_named, observers=[] if metrics is None else [metrics])
    serve = None if address is None or metrics is None else partial(serving, address, metrics)
    counts = run(_work(making, serve, until_idle=until_idle))
    if counts is None:
        stopped()
    _report(counts, as_json=as_json)
    if until_idle and (counts.dead or counts.retried or counts.lost):
        sys.exit(FAILED)


def _refuse_in_vain(options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value is not None:
            raise click.UsageError(f"--{name} goes with --exec; a worker of your own says it itself")


def _load(target: str) -> object:
    try:
        return load(target)
    except AlkstoreError as error:  # a worker that cannot be
        raise failure(error) from error


def _executing(
    queue: str, program: Program, *, concurrency: int | None, timeout: float | None, grace: float | None
) -> Callable[[Store], Worker]:
    def make(store: Store) -> Worker:
        handler = handle(program, concurrency=concurrency or 1, timeout=timeout)
        return Worker(store, {queue: handler}, grace=GRACE if grace is None else grace)

    return make


async def _work(
    making: AbstractAsyncContextManager[Worker],
    serve: Callable[[Store], AbstractContextManager[None]] | None,
    *,
    until_idle: bool,
) -> Counts | None:
    """Work; None if it was told to stop before it was idle."""
    async with making as worker:
        with nullcontext() if serve is None else serve(worker.store):
            return await (_until_idle(worker) if until_idle else worker.run())


async def _until_idle(worker: Worker) -> Counts | None:
    stop = StopToken()
    with listening(stop, asyncio.Event()):
        working = asyncio.ensure_future(worker.run_until_idle())
        counts = await unless_stopped(working, stop)
        if counts is None:  # what is in hand is given back
            await asyncio.wait((working,))
    return counts


def _report(counts: Counts, *, as_json: bool) -> None:
    found = dataclasses.asdict(counts)
    if as_json:
        emit(found)
    else:
        click.echo(", ".join(f"{name} {count:,}" for name, count in found.items()))
