from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import alkstore.sync
from alkstore import CodecError, InvalidArgument, Queue, Store
from alkstore.sync.testing import assert_enqueued as assert_enqueued_plainly
from alkstore.testing import PAGE, assert_enqueued
from alkstore_mem import MemStore

pytestmark = pytest.mark.filterwarnings("ignore:mem. keeps nothing")


@pytest_asyncio.fixture
async def store() -> AsyncIterator[Store]:
    async with MemStore() as opened:
        yield opened


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.queue("mail")


async def test_the_first_job_that_fits_is_given(queue: Queue) -> None:
    await queue.enqueue("other")
    id = await queue.enqueue({"to": "ada", "tags": ("a", "b")}, delay=60, priority=3)
    await queue.enqueue({"to": "ada", "tags": ["a", "b"]})

    job = await assert_enqueued(queue, {"tags": ("a", "b"), "to": "ada"})

    assert (job.id, job.priority) == (id, 3)
    assert (await assert_enqueued(queue, lambda found: "tags" in found)).id == id
    assert (await assert_enqueued(queue)).payload == "other"


async def test_none_is_a_payload(queue: Queue) -> None:
    await queue.enqueue(0)
    with pytest.raises(
        AssertionError, match=r"^no job with None waits in queue 'mail'; what waits there is 0$"
    ):
        await assert_enqueued(queue, None)
    await queue.enqueue(None)

    assert (await assert_enqueued(queue, None)).payload is None


@pytest.mark.parametrize(("held", "wanted"), [(1, True), ({"n": [1]}, {"n": [True]}), (1, 1.0), ("1", 1)])
async def test_values_that_handlers_tell_apart_are_told_apart(
    queue: Queue, held: object, wanted: object
) -> None:
    await queue.enqueue(held)

    with pytest.raises(AssertionError):
        await assert_enqueued(queue, wanted)


async def test_what_does_not_wait_any_more_is_not_enqueued(queue: Queue) -> None:
    await queue.enqueue("claimed")
    handle = await queue.claim_one()
    assert handle is not None

    with pytest.raises(AssertionError, match=r"^no job waits in queue 'mail'; nothing waits there$"):
        await assert_enqueued(queue)
    await handle.retry(delay=60)

    assert (await assert_enqueued(queue, "claimed")).attempts == 1


async def test_the_error_names_the_first_payloads_and_counts_the_rest(queue: Queue) -> None:
    await queue.enqueue_batch(list(range(PAGE + 2)))

    with pytest.raises(AssertionError) as caught:
        await assert_enqueued(queue, lambda found: found == "x")

    assert str(caught.value) == (
        "no job with such a payload waits in queue 'mail'; what waits there is 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, and 992 more"
    )
    assert (await assert_enqueued(queue, PAGE + 1)).payload == PAGE + 1


async def test_nothing_is_changed_by_a_look(queue: Queue) -> None:
    await queue.enqueue(1)

    await assert_enqueued(queue, 1)

    assert await queue.claim_one() is not None


async def test_bad_arguments_are_told(queue: Queue) -> None:
    with pytest.raises(
        InvalidArgument, match=r"queue must be a Queue, as store\.queue\(name\) gives it, got 'mail'"
    ):
        await assert_enqueued("mail")  # type: ignore[arg-type]
    with pytest.raises(CodecError, match="set"):
        await assert_enqueued(queue, {1, 2})


def test_plain_threads_have_it_too() -> None:
    with alkstore.sync.open("mem://") as store:
        queue = store.queue("mail")
        queue.enqueue({"to": "ada"})

        assert assert_enqueued_plainly(queue, {"to": "ada"}).attempts == 0
        with pytest.raises(AssertionError, match="no job with 'x' waits in queue 'mail'"):
            assert_enqueued_plainly(queue, "x")
        with pytest.raises(InvalidArgument, match=r"queue must be an alkstore\.sync\.Queue"):
            assert_enqueued_plainly("mail")  # type: ignore[arg-type]
