"""An order and its job share one transaction, wherever the store is."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.conf import settings
from django.db import connection, connections, transaction
from django.test import Client
from django.test.utils import override_settings
from shop.models import Order

import alkstore
import alkstore.django
import alkstore.sync

IN_MEMORY = "URL" in settings.ALKSTORE


def numbers() -> list[int]:
    return [job.payload["number"] for job in alkstore.django.store().queue("confirmations").list()]


def place(number: int, **more: object) -> int:
    return Client().post("/orders", {"number": number, **more}, content_type="application/json").status_code


def test_a_view_that_commits_leaves_exactly_one_job() -> None:
    assert place(7) == 201

    assert numbers() == [7]
    assert Order.objects.filter(number=7).exists()


def test_a_view_that_rolls_back_leaves_no_job() -> None:
    assert place(8, twice=True) == 409

    assert numbers() == []
    assert not Order.objects.exists()


def test_nobody_sees_the_job_before_the_order() -> None:
    with transaction.atomic():
        Order.objects.create(number=1)
        alkstore.django.enqueue("confirmations", {"number": 1})
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(numbers).result(10) == []
            assert pool.submit(_orders).result(10) == 0

    assert (numbers(), _orders()) == ([1], 1)


def _orders() -> int:
    try:
        return Order.objects.count()
    finally:
        connection.close()


def test_a_job_is_there_when_django_calls_back_after_the_commit() -> None:
    seen: list[list[int]] = []
    with transaction.atomic():
        alkstore.django.enqueue("confirmations", {"number": 1})
        transaction.on_commit(lambda: seen.append(numbers()))

    assert seen == [[1]]


def test_an_inner_block_that_rolls_back_takes_its_jobs_along() -> None:
    with transaction.atomic():
        alkstore.django.enqueue("confirmations", {"number": 1})
        try:
            with transaction.atomic():
                alkstore.django.enqueue("confirmations", {"number": 2})
                with transaction.atomic():
                    alkstore.django.enqueue("confirmations", {"number": 3})
                raise KeyError
        except KeyError:
            pass
        with transaction.atomic():
            alkstore.django.enqueue("confirmations", {"number": 4})
        alkstore.django.enqueue("confirmations", {"number": 5})

    assert numbers() == [1, 4, 5]


def test_all_that_a_transaction_can_do_shares_its_fate() -> None:
    store = alkstore.django.store()
    for keep in (False, True):
        claims = store.queue(f"claims of {keep}")
        claims.enqueue(1)
        claim = claims.claim_one()
        assert claim is not None
        with transaction.atomic(), alkstore.django.join() as tx:
            tx.publish("orders", 1)
            tx.save_offset("orders", "c", 7)
            tx.outbox_enqueue("partner", 1)
            tx.ack(claim)
            assert [event.payload for event in tx.read_since("orders", 0)][-1:] == [1]
            transaction.set_rollback(not keep)

        assert len(store.stream("orders").read_since(0)) == keep
        assert store.stream("orders").get_offset("c") == 7 * keep
        assert store.outbox("partner").jobs.stats().ready == keep
        assert claims.stats().processing == 1 - keep


OPERATIONS = {
    "publish": lambda tx, _: tx.publish("inner", 2),
    "save an offset": lambda tx, _: tx.save_offset("inner", "c", 9),
    "enqueue": lambda tx, _: tx.enqueue("confirmations", {"number": 2}),
    "put into an outbox": lambda tx, _: tx.outbox_enqueue("inner", 2),
    "ack": lambda tx, claim: tx.ack(claim),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_whatever_is_alone_in_an_inner_block_goes_with_it(
    operation: Callable[[alkstore.sync.Tx, alkstore.sync.JobHandle], object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = alkstore.django.store()
    claims = store.queue("inner")
    claims.enqueue(1)
    claim = claims.claim_one()
    assert claim is not None
    with transaction.atomic():
        alkstore.django.enqueue("confirmations", {"number": 1})
        with transaction.atomic(), alkstore.django.join() as tx:
            operation(tx, claim)
            transaction.set_rollback(True)

    assert numbers() == [1]
    assert store.stream("inner").read_since(0) == []
    assert store.stream("inner").get_offset("c") == 0
    assert store.outbox("inner").jobs.stats().ready == 0
    assert claims.get_job(claim.job.id) is not None
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_what_begins_in_an_inner_block_that_rolls_back_can_begin_again() -> None:
    with transaction.atomic():
        with transaction.atomic():
            alkstore.django.enqueue("confirmations", {"number": 1})
            transaction.set_rollback(True)
        alkstore.django.enqueue("confirmations", {"number": 2})

    assert numbers() == [2]


def test_what_is_joined_twice_sees_what_it_did_the_first_time() -> None:
    with transaction.atomic():
        with alkstore.django.join() as tx:
            tx.publish("twice", 1)
        with alkstore.django.join() as tx:
            assert [event.payload for event in tx.read_since("twice", 0)] == [1]


def test_an_offset_that_was_moved_meanwhile_is_told_of_and_not_held_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    if not IN_MEMORY:  # a database lets the other one wait
        return
    orders = alkstore.django.store().stream("moved")
    with pytest.raises(alkstore.OffsetConflict):
        _save_what_another_resets()

    assert (numbers(), orders.get_offset("c")) == ([], 3)
    with transaction.atomic(), alkstore.django.join() as tx:
        tx.save_offset("moved", "c", 9)
    assert orders.get_offset("c") == 9
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def _save_what_another_resets() -> None:
    with transaction.atomic():
        with alkstore.django.join() as tx:
            tx.enqueue("confirmations", {"number": 1})
            tx.save_offset("moved", "c", 7)
        with alkstore.outside_tx():
            alkstore.django.store().stream("moved").reset_offset("c", 3)


def test_a_wait_that_is_given_up_spoils_the_block() -> None:
    if not IN_MEMORY:
        return
    with override_settings(ALKSTORE={"URL": "mem://", "OPTIONS": {"wait_timeout": 0.01}}):
        store = alkstore.django.store()
        with ThreadPoolExecutor(1) as pool, store.begin_tx() as other:
            other.save_offset("moved", "c", 7)
            assert pool.submit(_save_and_order).result(10) == "DatabaseError, TransactionManagementError"
        assert store.stream("moved").get_offset("c") == 7


def _save_and_order() -> str:
    try:
        with transaction.atomic():
            with pytest.raises(alkstore.DatabaseError) as first, alkstore.django.join() as tx:
                tx.save_offset("moved", "c", 9)
            with pytest.raises(transaction.TransactionManagementError) as second:
                Order.objects.create(number=1)
        return f"{first.type.__name__}, {second.type.__name__}"
    finally:
        connection.close()


def test_what_was_joined_is_closed_with_the_block() -> None:
    with transaction.atomic():
        joined = alkstore.django.join()
        tx = joined.__enter__()
        tx.enqueue("confirmations", {"number": 1})
    with pytest.raises(alkstore.Closed):
        tx.enqueue("confirmations", {"number": 2})
    with transaction.atomic(), pytest.raises(alkstore.Closed):
        tx.enqueue("confirmations", {"number": 3})
    joined.__exit__(None, None, None)

    assert numbers() == [1]


def test_outside_of_a_transaction_a_job_commits_by_itself() -> None:
    id = alkstore.django.enqueue("confirmations", {"number": 1}, priority=3, delay=0)

    job = alkstore.django.store().queue("confirmations").get_job(id)
    assert job is not None
    assert (job.payload, job.priority) == ({"number": 1}, 3)


def test_a_queue_with_stamps_of_its_own_is_taken_too() -> None:
    queue = alkstore.django.store().queue("confirmations", max_attempts=9)
    with transaction.atomic():
        alkstore.django.enqueue(queue, {"number": 1})
    alkstore.django.enqueue(queue, {"number": 2})

    assert [job.max_attempts for job in queue.list()] == [9, 9]


def test_outside_of_a_transaction_there_is_nothing_to_join() -> None:
    with pytest.raises(alkstore.InvalidArgument, match=r"within 'with transaction\.atomic\(\):'"):
        alkstore.django.join().__enter__()


def test_a_transaction_that_django_has_given_up_is_not_joined() -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(alkstore.DatabaseError, match="has failed before"):
            alkstore.django.enqueue("confirmations", {"number": 1})

    assert numbers() == []


def test_a_transaction_on_another_database_is_refused() -> None:
    if not IN_MEMORY:
        with pytest.raises(alkstore.InvalidArgument), transaction.atomic("elsewhere"):
            alkstore.django.enqueue("confirmations", {"number": 1}, using="elsewhere")

    assert numbers() == []
    connections["elsewhere"].close()


def test_a_failure_on_the_server_is_not_taken_for_success() -> None:
    if connection.vendor != "postgresql":
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE alkstore.job RENAME TO gone")
        with pytest.raises(alkstore.DatabaseError):
            alkstore.django.enqueue("confirmations", {"number": 1})
        with pytest.raises(transaction.TransactionManagementError):
            Order.objects.create(number=1)

    assert numbers() == []


def test_a_transaction_by_hand_is_joined_where_the_database_tells_of_its_end() -> None:
    transaction.set_autocommit(False)
    try:
        if not IN_MEMORY:
            Order.objects.create(number=1)
            alkstore.django.enqueue("confirmations", {"number": 1})
            transaction.commit()
            alkstore.django.enqueue("confirmations", {"number": 2})
            transaction.rollback()
            assert numbers() == [1]
        else:
            with pytest.raises(alkstore.InvalidArgument, match="manual transaction management"):
                alkstore.django.enqueue("confirmations", {"number": 1})
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


def test_a_thread_that_waits_hears_of_the_commit() -> None:
    queue = alkstore.django.store().queue("confirmations")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: queue.claim(timeout=10))
        place(1)
        handle = waiting.result(10)

    assert handle is not None
    assert handle.ack()


def test_other_settings_give_another_store() -> None:
    place(1)
    with override_settings(ALKSTORE={"URL": "mem://", "OPTIONS": {"poll_interval": 1}}):
        pretended = alkstore.django.store()
        assert pretended is alkstore.django.store()
        assert pretended.queue("confirmations").list() == []
        place(2)
        assert numbers() == [2]
    assert numbers() == ([] if IN_MEMORY else [1])


def test_a_store_that_was_closed_is_made_anew_at_its_next_use() -> None:
    place(1)
    before = alkstore.django.store()

    alkstore.django.close()
    alkstore.django.close()

    with pytest.raises(alkstore.Closed):
        before.queues()
    assert numbers() == ([] if IN_MEMORY else [1])
