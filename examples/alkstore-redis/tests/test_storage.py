"""What the contract cannot see: the server's scripts and connections, what a URL shows, and the driver's errors."""

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import cast

import pytest

import alkstore
from alkstore import Closed, DatabaseError, InvalidArgument
from alkstore_redis import RedisStore
from alkstore_redis.contract_server import Server, available
from alkstore_redis.engine import RedisEngine

PASSWORD = "s3cret"

needs_server = pytest.mark.skipif(available() is not None, reason=available() or "there is a server")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


@pytest.fixture
async def store(server: Server) -> AsyncIterator[RedisStore]:
    server.redis.flushall()
    async with RedisStore(server.url) as opened:
        yield opened


@contextmanager
def configured(server: Server, name: str, value: int) -> Iterator[None]:
    """Set a number in the server's configuration that is 0 otherwise."""
    server.redis.config_set(name, value)
    try:
        yield
    finally:
        server.redis.config_set(name, 0)


@needs_server
async def test_a_restarted_server_has_everything_that_was_acknowledged(
    server: Server, store: RedisStore
) -> None:
    ids = [await store.queue("mail").enqueue(number) for number in range(3)]
    async with store.listen("news") as wakes:
        server.stop()
        with pytest.raises(DatabaseError) as caught:
            await store.queue("mail").enqueue("lost")
        server.start()
        wake = await asyncio.wait_for(wakes.recv(), 30)

    assert isinstance(caught.value.__cause__, Exception)
    assert wake == alkstore.Wake("news", True)
    assert [job.id for job in await store.queue("mail").list()] == ids


@needs_server
async def test_a_flushed_script_is_sent_again(server: Server, store: RedisStore) -> None:
    first = await store.queue("mail").enqueue(1)
    server.redis.script_flush()

    assert await store.queue("mail").enqueue(2) > first


@needs_server
async def test_a_store_whose_connections_were_cut_goes_on(server: Server, store: RedisStore) -> None:
    await asyncio.gather(*(store.queue(f"mail {number}").stats() for number in range(20)))
    assert server.redis.client_kill_filter(_type="normal", skipme=True) == 10

    for number in range(10):
        with suppress(DatabaseError):  # no more of them than there were connections
            await store.queue("mail").enqueue(number)
    assert await store.queue("mail").enqueue("last")


@needs_server
async def test_what_a_dead_store_held_back_is_read_at_once_and_freed_by_the_next_write(
    server: Server, store: RedisStore
) -> None:
    async with RedisStore(server.url) as other:
        log = other.stream("log")
        tx = await store.begin_tx()
        await tx.publish("log", "never")
        offset = await log.publish("held back")
        before = await log.head()

        await cast(RedisEngine, store._engine).listener.aclose()  # as its process's end does
        with configured(server, "min-replicas-to-write", 1):
            after = (await log.head(), [event.offset for event in await log.read_since(0)])
        await log.publish("last")
        with pytest.raises(DatabaseError, match="listening connection"):
            await tx.commit()

    assert (before, after) == (0, (offset, [offset]))


@needs_server
async def test_an_outside_subscriber_hears_the_payload_of_a_notify(server: Server, store: RedisStore) -> None:
    with server.redis.pubsub(ignore_subscribe_messages=True) as outside:  # type: ignore[no-untyped-call]
        outside.subscribe("{alkstore}:notify:news")
        outside.get_message(timeout=30)
        await store.notify("news", {"id": 7})
        heard = outside.get_message(timeout=30)

    assert (heard or {})["data"] == b'{"id":7}'


@needs_server
async def test_two_prefixes_share_nothing(server: Server, store: RedisStore) -> None:
    async with RedisStore(server.url, prefix="other") as other, other.listen("news") as wakes:
        await store.queue("mail").enqueue(1)
        await store.notify("news")
        await other.notify("last")

        assert await other.queues() == []
        assert await wakes.try_recv() is None


@needs_server
async def test_a_server_out_of_memory_refuses_a_write_and_keeps_its_half(
    server: Server, store: RedisStore
) -> None:
    with configured(server, "maxmemory", 1), pytest.raises(DatabaseError, match="maxmemory") as caught:
        await store.queue("mail").enqueue_batch(range(3))

    assert not caught.value.outcome_unknown
    assert await store.queue("mail").list() == []
    assert await store.queues() == []


@needs_server
async def test_a_schedule_whose_queue_is_spoilt_holds_back_no_other(
    server: Server, store: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    server.redis.set("{alkstore}:jobs:spoilt", "no set")
    for queue in ("spoilt", "whole"):
        await store.schedule(queue, "@every 1s", queue, 1, anchor=alkstore.numbers.to_datetime(0))
        server.redis.hset("{alkstore}:schedules", queue, _due(server, queue))

    before = await store.schedules()
    with caplog.at_level(logging.ERROR, "alkstore"):
        fired = await store.tick_schedules()

    assert fired > 0
    assert [rule.next_fire_at for rule in await store.schedules() if rule.name == "spoilt"] == [
        rule.next_fire_at for rule in before if rule.name == "spoilt"
    ]
    assert {job.queue for job in await store.queue("whole").list()} == {"whole"}
    assert "'spoilt' cannot fire" in caplog.text


def _due(server: Server, name: str) -> bytes:
    """Give the text of a schedule, with its next boundary a few seconds ago."""
    stored = json.loads(server.redis.hget("{alkstore}:schedules", name) or b"")
    seconds, _ = server.redis.time()
    stored["next_fire_at"] = seconds * 1_000_000 - 2_000_000
    return json.dumps(stored).encode()


async def test_no_message_shows_the_password() -> None:
    store = alkstore.open(f"redis://user:{PASSWORD}@localhost:1/0")

    with pytest.raises(DatabaseError) as caught:
        _ = await store

    for text in (repr(store), str(caught.value), repr(caught.value.__cause__)):
        assert PASSWORD not in text
    assert "localhost:1" in repr(store)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:s3cret@localhost",
        "redis://user:s3cret",  # the user is taken for the host, and the password for its port
        "redis://user:s3cret/@localhost",
        "redis://user:s3cret#@localhost",
        "redis://user@s3cret:x@localhost/0",
        7,
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(InvalidArgument, match="url must be") as caught:
        _ = RedisStore(url)

    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "options", [{"prefix": ""}, {"prefix": "a{b"}, {"pool_size": 0}, {"probe_interval": 0}]
)
def test_an_option_that_is_not_of_its_domain_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        _ = RedisStore("redis://localhost", **options)  # type: ignore[arg-type]  # that is what is tested


@needs_server
async def test_a_close_in_any_moment_of_a_transactions_wait_is_told_as_one(server: Server) -> None:
    async def wait(store: RedisStore) -> None:
        async with store.begin_tx() as tx:
            await tx.read_from_consumer("s", "held")

    for turns in range(0, 240, 2):
        store = await RedisStore(server.url)
        holding = await store.begin_tx()
        await holding.read_from_consumer("s", "held")
        waiting = asyncio.create_task(wait(store))
        for _ in range(turns):
            await asyncio.sleep(0)
        await store.aclose()
        with pytest.raises(Closed):
            await asyncio.wait_for(waiting, 30)
