"""A batch that holds what is no payload: the error says which of them it is, and nothing is done."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from alkstore import CodecError, EnqueueOpts, InvalidArgument, Store, Tx
from alkstore_mem import MemStore

WRONG = [1, 2, {"a": {1}}, object()]

BATCHES: dict[str, Callable[[Store, Tx], Awaitable[Any]]] = {
    "enqueue_batch": lambda store, tx: store.queue("q").enqueue_batch(WRONG),
    "with options for each": lambda store, tx: store.queue("q").enqueue_batch(
        WRONG, each=[EnqueueOpts()] * 4
    ),
    "publish_batch": lambda store, tx: store.stream("q").publish_batch(WRONG),
    "with keys": lambda store, tx: store.stream("q").publish_batch(WRONG, keys=["a", "b", "c", "d"]),
    "tx.enqueue_batch": lambda store, tx: tx.enqueue_batch("q", WRONG),
    "tx.publish_batch": lambda store, tx: tx.publish_batch("q", WRONG),
}


@pytest.mark.parametrize("batch", BATCHES)
async def test_the_first_that_is_no_payload_is_told_by_its_place(batch: str) -> None:
    async with MemStore() as store:
        tx = await store.begin_tx()
        if not batch.startswith("tx."):
            await tx.rollback()
        with pytest.raises(CodecError, match=r"^payloads\[2\]: payload at \$\.a must be JSON"):
            await BATCHES[batch](store, tx)
        if batch.startswith("tx."):
            await tx.commit()

        assert (await store.queue("q").list(), await store.stream("q").read_since(0)) == ([], [])


async def test_headers_that_are_none_are_not_blamed_on_a_payload() -> None:
    async with MemStore() as store:
        with pytest.raises(InvalidArgument, match=r"^header 'a' must be a str"):
            await store.queue("q").enqueue_batch([1], each=[EnqueueOpts(headers={"a": object()})])  # type: ignore[dict-item]
