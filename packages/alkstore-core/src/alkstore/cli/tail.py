"""``alkstore tail`` and ``alkstore listen``: what happens, as it happens."""

import datetime as dt
from collections.abc import Sequence
from typing import Final

import click

from alkstore.cli import UNREACHABLE
from alkstore.cli.output import emit, payload_text, payload_values, plain, seconds
from alkstore.cli.storage import Failure, Storage, json_option, run, storage_options
from alkstore.stream import EventReceiver
from alkstore.values import StreamEvent, Wake

__all__ = ["listen", "tail"]

PAGE: Final = 500


@click.command(short_help="Print the events of a stream as they come.")
@click.argument("stream")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="Begin after this offset; 0 is the start.",
)
@click.option("--last", type=click.IntRange(min=0), metavar="N", help="Begin N offsets before the end.")
@click.option("--consumer", metavar="NAME", help="Begin where NAME is, and move it along.")
@click.option("--peek", is_flag=True, help="With --consumer: do not move it.")
@click.option("--no-follow", is_flag=True, help="End at the last event instead of waiting for more.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N events.")
@storage_options
@json_option
def tail(
    storage: Storage,
    stream: str,
    after: int | None,
    last: int | None,
    consumer: str | None,
    peek: bool,
    no_follow: bool,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print the events of STREAM, one a line, from now on or from where it is told to begin.

    As a consumer it moves on once a line is printed: what was under way when it was killed is printed again the next time.
    """
    if sum(each is not None for each in (after, last, consumer)) > 1:
        raise click.UsageError("--after, --last and --consumer each say where to begin: give one")
    if peek and consumer is None:
        raise click.UsageError("--peek goes with --consumer")
    run(_Tail(consumer, peek, not no_follow, limit, as_json).go(storage, stream, after, last))


class _Tail:
    def __init__(
        self, consumer: str | None, peeks: bool, follows: bool, limit: int | None, as_json: bool
    ) -> None:
        self._consumer = consumer
        self._saves = consumer is not None and not peeks
        self._follows = follows
        self._left = limit
        self._as_json = as_json

    async def go(self, storage: Storage, name: str, after: int | None, last: int | None) -> None:
        async with storage.looked_at() as store:
            stream = store.stream(name)
            if last is not None:
                after = max(await stream.head() - last, 0)
            async with stream.subscribe(self._consumer, after=after) as events:
                head = await stream.head()
                await (self._follow(events) if self._follows else self._read(events, head))

    async def _follow(self, events: EventReceiver) -> None:
        while self._left != 0:
            page = await events.recv_page(self._size)
            if not page:
                raise Failure("the storage was lost", UNREACHABLE)
            await self._print(page, events)

    async def _read(self, events: EventReceiver, head: int) -> None:
        while self._left != 0 and (event := await events.try_recv()) is not None:
            await self._print([event], events)
            if event.offset >= head:  # what comes after we began is for the next time
                return

    @property
    def _size(self) -> int:
        return PAGE if self._left is None else min(self._left, PAGE)

    async def _print(self, page: Sequence[StreamEvent], events: EventReceiver) -> None:
        for event in page:
            if self._as_json:
                emit(_record(event))
            else:
                key = "" if event.key is None else f"  {plain(event.key)}"
                click.echo(f"{event.offset}  {seconds(event.created_at)}{key}  {plain(payload_text(event))}")
        if self._saves:
            await events.save(page[-1])
        if self._left is not None:
            self._left -= len(page)


def _record(event: StreamEvent) -> dict[str, object]:
    return {
        "offset": event.offset,
        "stream": event.stream,
        "key": event.key,
        "created_at": event.created_at,
        "headers": dict(event.headers),
        **payload_values(event),
    }


@click.command(short_help="Print the wakes of a channel as they come.")
@click.argument("channel")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N wakes.")
@storage_options
@json_option
def listen(storage: Storage, channel: str, limit: int | None, as_json: bool) -> None:
    """Print a line for each wake of CHANNEL: a hint that something changed, without saying what.

    Several that come close together may be one.
    """
    run(_listen(storage, channel, limit, as_json))


async def _listen(storage: Storage, channel: str, limit: int | None, as_json: bool) -> None:
    heard = 0
    async with storage.looked_at() as store, store.listen(channel) as receiver:
        click.echo(f"listening on {plain(channel)}", err=True)
        async for wake in receiver:
            _tell(wake, as_json)
            heard += 1
            if heard == limit:
                return
    raise Failure("the storage was lost", UNREACHABLE)


def _tell(wake: Wake, as_json: bool) -> None:
    now = dt.datetime.now(dt.UTC)
    if as_json:
        emit({"channel": wake.channel, "at": now, "reconnected": wake.reconnected})
        return
    note = "  (reconnected: some may have been missed)" if wake.reconnected else ""
    click.echo(f"{seconds(now)}  {plain(wake.channel)}{note}")
