"""Core and engines that store payloads and headers wrongly, each in exactly one way."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from mutant import Patch, mutant

from alkstore import CodecError, DatabaseError, Queue, Tx, payload
from alkstore.engine import NewJob, Retry, Settle, Traits
from alkstore_mem.engine import MemEngine
from alkstore_mem.transaction import MemTransaction


def _encode_becomes(patch: Patch, change: Callable[[Any, Callable[[object], bytes]], bytes]) -> None:
    original = payload.encode
    patch.attribute(payload, "encode", lambda value: change(value, original))


def _takes_more(patch: Patch, instead: Callable[[Any], bytes | None]) -> None:
    """Encode what is refused, where ``instead`` gives bytes for it."""

    def change(value: Any, original: Callable[[object], bytes]) -> bytes:
        try:
            return original(value)
        except CodecError:
            data = instead(value)
            if data is None:
                raise
            return data

    _encode_becomes(patch, change)


# ---------------------------------------------------------------- the stored bytes


@mutant("keys-are-sorted", kills="PAY-01")
def keys_are_sorted(patch: Patch) -> None:
    _encode_becomes(
        patch, lambda value, original: original(value) and msgspec.json.encode(value, order="sorted")
    )


@mutant("float-stored-as-int", kills="PAY-01")
def float_stored_as_int(patch: Patch) -> None:
    def change(value: Any, original: Callable[[object], bytes]) -> bytes:
        is_whole = type(value) is float and math.isfinite(value) and value.is_integer()
        return original(int(value) if is_whole else value)

    _encode_becomes(patch, change)


@mutant("tuple-refused", kills="PAY-01")
def tuple_refused(patch: Patch) -> None:
    def change(value: Any, original: Callable[[object], bytes]) -> bytes:
        if isinstance(value, tuple):
            raise CodecError("payload must be JSON, got a tuple")
        return original(value)

    _encode_becomes(patch, change)


@mutant("payload-encoded-at-commit", kills="PAY-01")
def payload_encoded_at_commit(patch: Patch) -> None:
    given: list[tuple[Tx, int, object]] = []
    enqueue, commit = Tx.enqueue, Tx.commit

    async def remember(tx: Tx, queue: Any, value: object, **options: Any) -> int:
        id = await enqueue(tx, queue, value, **options)
        given.append((tx, id, value))
        return id

    async def encode_now(tx: Tx) -> None:
        inner: Any = tx._tx
        for owner, id, value in given:
            if owner is tx:
                inner._jobs[id] = inner._jobs[id]._replace(payload=payload.encode(value))
        await commit(tx)

    patch.attribute(Tx, "enqueue", remember)
    patch.attribute(Tx, "commit", encode_now)


@mutant("ints-beyond-64-bits-become-floats", kills="PAY-02")
def ints_beyond_64_bits_become_floats(patch: Patch) -> None:
    _encode_becomes(
        patch,
        lambda value, original: original(1e300 if isinstance(value, int) and abs(value) >= 2**64 else value),
    )


@mutant("text-cut-at-a-nul", kills="PAY-02")
class TextCutAtANul(MemEngine):
    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        return await super().insert_jobs([job._replace(payload=_cut(job.payload)) for job in jobs])


def _cut(data: bytes) -> bytes:
    head, nul, _ = data.partition(b"\\u0000")
    return head + b'"' if nul and data.startswith(b'"') else data


# ---------------------------------------------------------------- what is refused


@mutant("nan-stored-as-null", kills="PAY-03")
def nan_stored_as_null(patch: Patch) -> None:
    _takes_more(patch, lambda value: b"null" if isinstance(value, float) else None)


@mutant("keys-are-coerced", kills="PAY-03")
def keys_are_coerced(patch: Patch) -> None:
    def coerced(value: Any) -> bytes | None:
        has_int = isinstance(value, dict) and any(type(key) is int for key in value)
        return msgspec.json.encode(value) if has_int else None

    _takes_more(patch, coerced)


@mutant("sets-become-lists", kills="PAY-03")
def sets_become_lists(patch: Patch) -> None:
    _takes_more(patch, lambda value: msgspec.json.encode(value) if isinstance(value, set) else None)


@mutant("codec-error-names-no-path", kills="PAY-03")
def codec_error_names_no_path(patch: Patch) -> None:
    def change(value: Any, original: Callable[[object], bytes]) -> bytes:
        try:
            return original(value)
        except CodecError:
            raise CodecError("payload must be JSON") from None

    _encode_becomes(patch, change)


@mutant("decoding-needs-the-callers-stack", kills="PAY-03")
def decoding_needs_the_callers_stack(patch: Patch) -> None:
    # In frames of Python: from 3.12 on what C code nests is not counted against the caller's limit.
    def rebuilt(value: object) -> object:
        if isinstance(value, list):
            return [rebuilt(item) for item in value]
        if isinstance(value, dict):
            return {key: rebuilt(item) for key, item in value.items()}
        return value

    patch.attribute(payload, "decode", lambda data: rebuilt(msgspec.json.decode(data)))


@mutant("null-payload-is-dropped", kills="PAY-04")
def null_payload_is_dropped(patch: Patch) -> None:
    original = Queue.enqueue_batch

    async def lossy(queue: Queue, payloads: Iterable[object], **options: Any) -> list[int]:
        return await original(queue, [value for value in payloads if value is not None], **options)

    patch.attribute(Queue, "enqueue_batch", lossy)


@mutant("payload-as-is-lax", kills="PAY-05")
def payload_as_is_lax(patch: Patch) -> None:
    original = payload.decode_as

    def lax(data: bytes, type_: Any) -> Any:
        try:
            return original(data, type_)
        except CodecError as error:
            try:
                return msgspec.json.decode(data, type=type_, strict=False)
            except msgspec.ValidationError:
                raise error from None

    patch.attribute(payload, "decode_as", lax)


# ---------------------------------------------------------------- sizes


@mutant("notify-limit-is-one-byte-short", kills="PAY-06")
class NotifyLimitIsOneByteShort(MemEngine):
    @property
    def traits(self) -> Traits:
        return Traits(notify_limit=6_999)


@mutant("payloads-end-at-1-mib", kills="PAY-07")
class PayloadsEndAt1MiB(MemEngine):
    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        if any(len(job.payload) > 2**20 for job in jobs):
            raise DatabaseError("value too long")
        return await super().insert_jobs(jobs)


# ---------------------------------------------------------------- headers


@mutant("tx-drops-headers", kills="PAY-08")
def tx_drops_headers(patch: Patch) -> None:
    original = MemTransaction.insert_jobs

    async def dropping(tx: MemTransaction, jobs: Sequence[NewJob]) -> Sequence[int]:
        return await original(tx, [job._replace(headers=b"{}") for job in jobs])

    patch.attribute(MemTransaction, "insert_jobs", dropping)


@mutant("retry-drops-headers", kills="PAY-08")
class RetryDropsHeaders(MemEngine):
    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        landed = await super().settle_jobs(settles)
        for settle in settles:
            if isinstance(settle, Retry):
                rows = self._queues._backlogs[settle.queue].rows
                rows[settle.id] = rows[settle.id]._replace(headers=b"{}")
        return landed


@mutant("headers-have-no-bound", kills="PAY-08")
def headers_have_no_bound(patch: Patch) -> None:
    patch.attribute(payload, "HEADERS_BYTES", 10**9)
