"""``alkstore schedules`` and ``alkstore locks``: what there is, by name."""

import datetime as dt

import click

from alkstore.cli.output import ago, emit, print_table
from alkstore.cli.storage import Storage, json_option, run, storage_options
from alkstore.errors import CodecError
from alkstore.values import LockInfo, Schedule

__all__ = ["locks", "schedule_record", "schedules"]


@click.command(short_help="List the schedules.")
@storage_options
@json_option
def schedules(storage: Storage, as_json: bool) -> None:
    """List the schedules: their rules, what they fire, and when next."""
    found = run(_schedules(storage))
    if as_json:
        for each in found:
            emit(schedule_record(each))
        return
    columns = (("schedule", "left"), ("every", "left"), ("queue", "left"), ("next", "left"), ("in", "right"))
    now = dt.datetime.now(dt.UTC)
    print_table(
        columns,
        (
            (each.name, each.spec, each.queue, each.next_fire_at, ago(each.next_fire_at - now))
            for each in found
        ),
    )
    if not found:
        click.echo("there are no schedules", err=True)


async def _schedules(storage: Storage) -> list[Schedule]:
    async with storage.looked_at() as store:
        return await store.schedules()


def schedule_record(schedule: Schedule) -> dict[str, object]:
    """Give everything of a schedule, by names that stay."""
    try:
        payload = schedule.payload
    except CodecError:
        payload = None
    opts = schedule.opts
    return {
        "schedule": schedule.name,
        "spec": schedule.spec,
        "queue": schedule.queue,
        "anchor": schedule.anchor,
        "next_fire_at": schedule.next_fire_at,
        "priority": opts.priority,
        "visibility_timeout": opts.visibility_timeout,
        "max_attempts": opts.max_attempts,
        "base_delay": opts.base_delay,
        "expires": opts.expires,
        "payload": payload,
    }


@click.command(short_help="List the locks that are held.")
@storage_options
@json_option
def locks(storage: Storage, as_json: bool) -> None:
    """List the locks that are held now; alkstore's own begin with __alkstore_."""
    found = run(_locks(storage))
    if as_json:
        for each in found:
            emit({"lock": each.name, "fence": each.fence, "expires_at": each.expires_at})
        return
    now = dt.datetime.now(dt.UTC)
    print_table(
        (("lock", "left"), ("fence", "right"), ("expires", "left"), ("in", "right")),
        ((each.name, each.fence, each.expires_at, ago(each.expires_at - now)) for each in found),
    )
    if not found:
        click.echo("no lock is held", err=True)


async def _locks(storage: Storage) -> list[LockInfo]:
    async with storage.looked_at() as store:
        return await store.locks()
