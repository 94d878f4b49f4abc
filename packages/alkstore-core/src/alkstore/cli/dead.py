"""``alkstore dead``: jobs that will not be tried again, and what may be done about them."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from alkstore.clearing import redrive_dead
from alkstore.cli import FAILED
from alkstore.cli.jobs import chosen, list_jobs, outbox_option, page_options
from alkstore.cli.output import ago, emit, job_record, many, plain, seconds
from alkstore.cli.storage import Failure, Storage, json_option, run, storage_options
from alkstore.cli.values import AGE
from alkstore.records import JobState
from alkstore.shown import lines, pretty
from alkstore.values import Job

__all__ = ["dead", "list_", "purge", "redrive", "show"]

_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group(short_help="Look at dead jobs, redrive or purge them.")
def dead() -> None:
    """Look at dead jobs, make them pending again, or delete them."""


@dead.command("list")
@click.argument("queue")
@page_options
@outbox_option
@storage_options
@json_option
def list_(storage: Storage, queue: str, outbox: bool, as_json: bool, **page: Any) -> None:
    """List the dead jobs of QUEUE."""
    run(list_jobs(storage, queue, JobState.DEAD, outbox, as_json, **page))


# ---------------------------------------------------------------- show


@dead.command()
@click.argument("queue")
@click.argument("job", type=int)
@outbox_option
@storage_options
@json_option
def show(storage: Storage, queue: str, job: int, outbox: bool, as_json: bool) -> None:
    """Show one dead job of QUEUE whole: its payload, headers and error."""
    found = run(_read(storage, queue, job, outbox))
    if found is None or found.state is not JobState.DEAD:
        state = "there is none" if found is None else f"it is {found.state.value}"
        raise Failure(f"queue {queue!r} has no dead job {job}: {state}", FAILED)
    if as_json:
        emit(job_record(found))
    else:
        _print(found)


async def _read(storage: Storage, queue: str, job: int, outbox: bool) -> Job | None:
    async with storage.looked_at() as store:
        return await chosen(store, queue, outbox).get_job(job)


def _print(job: Job) -> None:
    died, created = job.died_at, job.created_at
    lived = "" if died is None else f", {ago(died - created)} after it was enqueued"
    click.echo(f"job {job.id} of queue {plain(job.queue)}")
    click.echo(f"died      {'–' if died is None else seconds(died)}{lived}")
    click.echo(f"attempts  {job.attempts} of {job.max_attempts}")
    click.echo(f"priority  {job.priority}")
    for name, value in job.headers.items():
        click.echo(f"header    {plain(name)}={plain(value)}")
    click.echo("\npayload")
    _indent(pretty(job))
    click.echo("\nerror")
    _indent(job.last_error or "")


def _indent(text: str) -> None:
    for line in lines(text).splitlines():
        click.echo(f"  {line}")


# ---------------------------------------------------------------- redrive and purge


@dead.command()
@click.argument("queue")
@click.argument("ids", type=int, nargs=-1, metavar="[JOB]...")
@click.option("--all", "everything", is_flag=True, help="All of them; it asks first.")
@click.option("--error", metavar="TEXT", help="All whose error contains this; it asks first.")
@_yes_option
@outbox_option
@storage_options
@json_option
def redrive(
    storage: Storage,
    queue: str,
    ids: Sequence[int],
    everything: bool,
    error: str | None,
    yes: bool,
    outbox: bool,
    as_json: bool,
) -> None:
    """Make dead jobs of QUEUE pending again: ready now, no attempt used, their errors forgotten."""
    if (len(ids) > 0) + everything + (error is not None) != 1:
        raise click.UsageError("which ones? name their ids, or give --all or --error TEXT")
    if not ids:
        which = "all dead jobs" if error is None else f"all dead jobs whose error contains {error!r}"
        _ask(f"make {which} of queue {queue!r} pending again, and forget their errors?", yes)
    count = run(_redrive(storage, queue, ids, error, outbox))
    _report("redriven", count, queue, as_json)
    if ids and count < len(set(ids)):
        click.echo(f"{len(set(ids)) - count} of them are not dead, or not of this queue", err=True)
        sys.exit(FAILED)


async def _redrive(storage: Storage, name: str, ids: Sequence[int], error: str | None, outbox: bool) -> int:
    async with storage.looked_at() as store:
        queue = chosen(store, name, outbox)
        return await queue.redrive(*ids) if ids else await redrive_dead(queue, error)


@dead.command()
@click.argument("queue")
@click.option("--older-than", type=AGE, help="Those that died longer ago than this.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@_yes_option
@outbox_option
@storage_options
@json_option
def purge(
    storage: Storage,
    queue: str,
    older_than: float | None,
    everything: bool,
    yes: bool,
    outbox: bool,
    as_json: bool,
) -> None:
    """Delete dead jobs of QUEUE. They cannot be brought back, so it asks first."""
    if (older_than is not None) == everything:
        raise click.UsageError("which ones? give --older-than 30d, or --all")
    which = (
        "all dead jobs" if older_than is None else f"the dead jobs that died more than {older_than:g} s ago"
    )
    _ask(f"delete {which} of queue {queue!r} for ever?", yes)
    _report("purged", run(_purge(storage, queue, older_than, outbox)), queue, as_json)


async def _purge(storage: Storage, name: str, older_than: float | None, outbox: bool) -> int:
    async with storage.looked_at() as store:
        return await chosen(store, name, outbox).purge_dead(
            older_than=0 if older_than is None else older_than
        )


def _ask(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("there is nobody to be asked; give --yes if it is meant")
    click.confirm(question, abort=True, err=True)


def _report(what: str, count: int, queue: str, as_json: bool) -> None:
    if as_json:
        emit({"queue": queue, what: count})
    else:
        click.echo(f"{many(count, 'job')} {what}")
