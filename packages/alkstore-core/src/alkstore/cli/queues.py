"""``alkstore queues``: how much work there is, once or live."""

import asyncio
import datetime as dt
import sys
from collections.abc import Sequence

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from alkstore.cli.output import Column, ago, console, emit, print_table, table
from alkstore.cli.storage import Storage, json_option, run, storage_options
from alkstore.cli.values import SECONDS
from alkstore.store import Store
from alkstore.values import QueueStats

__all__ = ["Counted", "count", "queues"]

COLUMNS: Sequence[Column] = (
    ("queue", "left"),
    ("ready", "right"),
    ("delayed", "right"),
    ("processing", "right"),
    ("stale", "right"),
    ("dead", "right"),
    ("oldest ready", "right"),
)

Counted = tuple[str, str, QueueStats]
"""``queue`` or ``outbox``, its name, and its counts."""


@click.command(short_help="Count the jobs of every queue.")
@click.option("--watch", type=SECONDS, metavar="SECONDS", help="Show it again and again, until Ctrl-C.")
@storage_options
@json_option
def queues(storage: Storage, watch: float | None, as_json: bool) -> None:
    """Count the jobs of every queue and outbox: ready, delayed, processing, stale, dead.

    Stale ones have expired or used up their attempts, and are dead once somebody sweeps, as a worker does.
    """
    if watch is not None and watch <= 0:
        raise click.UsageError("--watch takes a positive number of seconds")
    run(_show(storage, watch, as_json))


async def _show(storage: Storage, watch: float | None, as_json: bool) -> None:
    async with storage.looked_at() as store:
        out = console()
        if watch is None or as_json or not out.is_terminal:
            await _print(store, watch, as_json)
        else:
            await _live(store, watch, out)


async def _print(store: Store, watch: float | None, as_json: bool) -> None:
    while True:
        counted = await count(store)
        if as_json:
            for each in counted:
                emit(_record(*each))
        else:
            print_table(COLUMNS, map(_row, counted))
            if not counted:
                click.echo("no queue has jobs", err=True)
        sys.stdout.flush()
        if watch is None:
            return
        await asyncio.sleep(watch)


async def _live(store: Store, watch: float, out: Console) -> None:
    with Live(console=out, auto_refresh=False, transient=False) as live:
        while True:
            live.update(_titled(await count(store), watch), refresh=True)
            await asyncio.sleep(watch)


def _titled(counted: Sequence[Counted], watch: float) -> Table:
    made = table(COLUMNS, map(_row, counted))
    made.caption = f"{dt.datetime.now(dt.UTC):%H:%M:%S}Z, every {watch:g} s; Ctrl-C ends it"
    return made


async def count(store: Store) -> list[Counted]:
    """Count every queue and outbox that has jobs, sorted by name, the outboxes last."""
    found = [("queue", name, await store.queue(name).stats()) for name in await store.queues()]
    return found + [
        ("outbox", name, await store.outbox(name).jobs.stats()) for name in await store.outboxes()
    ]


def _row(counted: Counted) -> Sequence[object]:
    kind, name, stats = counted
    shown = name if kind == "queue" else f"outbox {name}"
    counts = (stats.ready, stats.delayed, stats.processing, stats.stale, stats.dead)
    return (shown, *counts, ago(stats.oldest_ready_age))


def _record(kind: str, name: str, stats: QueueStats) -> dict[str, object]:
    return {
        "kind": kind,
        "name": name,
        "at": dt.datetime.now(dt.UTC),
        "ready": stats.ready,
        "delayed": stats.delayed,
        "processing": stats.processing,
        "stale": stats.stale,
        "dead": stats.dead,
        "oldest_ready_age": stats.oldest_ready_age,
    }
