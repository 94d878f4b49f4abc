"""``alkstore jobs``: the jobs of one queue, by pages."""

from collections.abc import Sequence
from typing import Any

import click

from alkstore.cli.output import Column, emit, job_record, payload_text, print_table
from alkstore.cli.storage import Storage, json_option, run, storage_options
from alkstore.queue import Queue
from alkstore.records import JobState
from alkstore.shown import gist
from alkstore.store import Store
from alkstore.values import Job

__all__ = ["chosen", "jobs", "list_jobs", "outbox_option", "page_options"]

COLUMNS: Sequence[Column] = (
    ("id", "left"),
    ("state", "left"),
    ("attempts", "right"),
    ("run at", "left"),
    ("worker", "left"),
    ("error", "left"),
    ("payload", "left"),
)

outbox_option = click.option("--outbox", is_flag=True, help="QUEUE names an outbox.")


def page_options(command: Any) -> Any:
    """Give a command ``--error``, ``--after`` and ``--limit``."""
    for option in (
        click.option(
            "--limit", type=click.IntRange(min=1), default=100, help="At most so many.  [default: 100]"
        ),
        click.option("--after", type=int, default=0, metavar="ID", help="Only those with a greater id."),
        click.option("--error", metavar="TEXT", help="Only those whose error contains this."),
    ):
        command = option(command)
    return command


def chosen(store: Store, name: str, outbox: bool) -> Queue:
    """Give the queue, or the jobs of the outbox."""
    return store.outbox(name).jobs if outbox else store.queue(name)


@click.command(short_help="List the jobs of a queue.")
@click.argument("queue")
@click.option(
    "--state", type=click.Choice([state.value for state in JobState]), help="Only those in this state."
)
@page_options
@outbox_option
@storage_options
@json_option
def jobs(storage: Storage, queue: str, state: str | None, outbox: bool, as_json: bool, **page: Any) -> None:
    """List the jobs of QUEUE in the order of their ids."""
    run(list_jobs(storage, queue, None if state is None else JobState(state), outbox, as_json, **page))


async def list_jobs(
    storage: Storage, name: str, state: JobState | None, outbox: bool, as_json: bool, **page: Any
) -> None:
    """Print one page, and how to get the next one."""
    async with storage.looked_at() as store:
        found = await chosen(store, name, outbox).list(state=state, **page)
    if as_json:
        for job in found:
            emit(job_record(job))
        return
    print_table(COLUMNS, map(_row, found))
    if len(found) == page["limit"]:
        click.echo(f"there may be more: --after {found[-1].id}", err=True)
    elif not found:
        click.echo("no such jobs", err=True)


def _row(job: Job) -> Sequence[object]:
    return (
        str(job.id),
        job.state.value,
        f"{job.attempts}/{job.max_attempts}",
        job.run_at,
        job.worker_id,
        gist(job.last_error or job.retry_error),
        payload_text(job),
    )
