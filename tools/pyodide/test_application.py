"""An application's own tests where it runs in a browser: fixtures of the suite, pytest-asyncio, Hypothesis."""

from hypothesis import given
from hypothesis import strategies as st

from alkstore import Store
from alkstore.testing import ManualClock, seeded
from alkstore_contract_suite.factory import StoreFactory
from alkstore_mem import MemStore

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=8
)


async def test_a_reminder_comes_after_an_hour_and_not_before(
    store: Store, store_factory: StoreFactory
) -> None:
    reminders = store.queue("reminders")
    await reminders.enqueue("tea", delay=3_600)

    await store_factory.advance(3_599)
    assert await reminders.claim_one() is None
    await store_factory.advance(1)
    handle = await reminders.claim_one()

    assert handle is not None
    assert handle.job.payload == "tea"


@given(JSON)
async def test_what_is_enqueued_is_what_is_claimed(payload: object) -> None:
    async with MemStore(clock=ManualClock(), random=seeded()) as store:
        await store.queue("q").enqueue(payload)
        handle = await store.queue("q").claim_one()

        assert handle is not None
        assert handle.job.payload == payload
