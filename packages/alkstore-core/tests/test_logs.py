"""What stands in the log, at which level, and in which fields a machine finds it."""

import logging

import pytest

import alkstore
from alkstore.logs import log
from alkstore.observing import ListenerChanged
from alkstore.testing import ManualClock
from alkstore.worker import Fail, Worker


def fields(record: logging.LogRecord) -> dict[str, object]:
    return {
        name.removeprefix("alkstore_"): value
        for name, value in vars(record).items()
        if name.startswith("alkstore_")
    }


def of(caplog: pytest.LogCaptureFixture, logger: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == logger]


async def test_each_fact_is_one_record_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    with caplog.at_level(logging.DEBUG, "alkstore.facts"):
        async with alkstore.open("mem://", clock=clock, observers=[log]) as store:
            id = await store.queue("mail").enqueue(1)
            (handle,) = await store.queue("mail").claim_batch(1)
            await clock.advance(2)
            await handle.ack()
            await store.stream("log").publish(1)
            await store.outbox("hook").enqueue(1)

    found = [fields(record) for record in of(caplog, "alkstore.facts")]
    for each in found:
        each.pop("seconds", None)
    assert found == [
        {"fact": "JobsEnqueued", "queue": "mail", "count": 1},
        {"fact": "JobsClaimed", "queue": "mail", "count": 1, "reclaimed": 0},
        {
            "fact": "JobSettled",
            "queue": "mail",
            "job_id": id,
            "attempt": 1,
            "max_attempts": 3,
            "outcome": "done",
            "held": 2.0,
        },
        {"fact": "EventsPublished", "stream": "log", "count": 1},
        {"fact": "JobsEnqueued", "outbox": "hook", "count": 1},
    ]
    assert of(caplog, "alkstore.facts")[2].getMessage() == (
        "job settled: queue 'mail', job_id 1, attempt 1, max_attempts 3, outcome 'done', held 2.0"
    )


async def test_the_level_says_whether_somebody_may_have_to_look(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    with caplog.at_level(logging.INFO, "alkstore.facts"):
        async with alkstore.open("mem://", clock=clock, observers=[log]) as store:
            queue = store.queue("mail", visibility_timeout=10)
            await queue.enqueue_batch(["ack", "retry", "fail", "release", "lapse"])
            await queue.enqueue("old", expires=5, delay=5)
            for handle in await queue.claim_batch(4):
                await getattr(handle, str(handle.job.payload))()
            await queue.claim_batch(2)
            await clock.advance(10)
            await queue.sweep_expired()
            await queue.claim_batch(9)
        log(ListenerChanged(is_connected=False, reason="no route"))
        log(ListenerChanged(is_connected=True, reason=None))

    found = [
        (record.levelname, fields(record)["fact"], fields(record).get("outcome"))
        for record in of(caplog, "alkstore.facts")
    ]
    assert found == [
        ("INFO", "JobSettled", "retried"),
        ("WARNING", "JobSettled", "dead"),
        ("INFO", "JobSettled", "released"),
        ("WARNING", "JobsExpired", None),
        ("WARNING", "JobSettled", "lost"),
        ("WARNING", "JobSettled", "lost"),
        ("WARNING", "JobsClaimed", None),
        ("WARNING", "ListenerChanged", None),
        ("INFO", "ListenerChanged", None),
    ]


async def test_what_a_worker_logs_of_a_job_has_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    async with alkstore.open("mem://") as store:
        id = await store.queue("mail").enqueue(1)
        await Worker(store, {"mail": lambda: Fail("no use")}).run_until_idle()

    (record,) = of(caplog, "alkstore.worker")
    assert record.levelname == "ERROR"
    assert fields(record) == {"queue": "mail", "job_id": id, "attempt": 1, "max_attempts": 3}
