"""Core that takes names, numbers and instants wrongly, each in exactly one way."""

import datetime as dt
from collections.abc import Sequence
from typing import Any

from mutant import Patch, mutant

from alkstore import (
    DatabaseError,
    InvalidArgument,
    InvalidName,
    Queue,
    ReservedName,
    Store,
    Tx,
    names,
    numbers,
)
from alkstore.engine import NewWake, Topic, TopicKind, Watch
from alkstore.stamps import PLAIN, Stamps
from alkstore_mem import backlog, lock, queue
from alkstore_mem.engine import MemEngine

# ---------------------------------------------------------------- which names are legal


@mutant("whitespace-is-a-name", kills="NAME-01")
def whitespace_is_a_name(patch: Patch) -> None:
    original = names.local

    def lax(name: object, what: str) -> str:
        return name if isinstance(name, str) and name.isspace() else original(name, what)

    patch.attribute(names, "local", lax)


@mutant("prefix-checked-on-one-path", kills="NAME-02")
def prefix_checked_on_one_path(patch: Patch) -> None:
    original = Tx._queue

    def unchecked(tx: Tx, target: Queue | str) -> tuple[str, Stamps]:
        return (names.local(target, "queue name"), PLAIN) if isinstance(target, str) else original(tx, target)

    patch.attribute(Tx, "_queue", unchecked)


@mutant("prefix-check-ignores-case", kills="NAME-02")
def prefix_check_ignores_case(patch: Patch) -> None:
    original = names.shared

    def wider(name: object, what: str) -> str:
        plain = original(name, what)
        if plain.lower().startswith(names.PREFIX):
            raise ReservedName(plain, what)
        return plain

    patch.attribute(names, "shared", wider)


@mutant("names-counted-in-characters", kills="NAME-03")
def names_counted_in_characters(patch: Patch) -> None:
    original = names.local

    def by_characters(name: object, what: str) -> str:
        try:
            return original(name, what)
        except InvalidName as error:
            if "bytes" in error.problem and len(error.name) <= names.MAX_BYTES:
                return error.name
            raise

    patch.attribute(names, "local", by_characters)


@mutant("keys-are-not-checked", kills="NAME-04")
def keys_are_not_checked(patch: Patch) -> None:
    original = names.local

    def lax(name: object, what: str) -> str:
        return name if what == "key" and isinstance(name, str) else original(name, what)

    patch.attribute(names, "local", lax)


@mutant("keys-refuse-the-prefix", kills="NAME-04")
def keys_refuse_the_prefix(patch: Patch) -> None:
    original = names.local

    def strict(name: object, what: str) -> str:
        plain = original(name, what)
        if what == "key" and plain.startswith(names.PREFIX):
            raise ReservedName(plain, what)
        return plain

    patch.attribute(names, "local", strict)


@mutant("name-checked-after-the-write", kills="NAME-06")
def name_checked_after_the_write(patch: Patch) -> None:
    original = Queue.enqueue

    async def too_late(target: Queue, payload: object, **options: Any) -> int:
        try:
            return await original(target, payload, **options)
        except InvalidName:
            await original(target, payload)
            raise

    patch.attribute(Queue, "enqueue", too_late)


@mutant("schedule-ignores-its-queue-name", kills="NAME-07")
def schedule_ignores_its_queue_name(patch: Patch) -> None:
    original = Store._queue_of

    def trusting(store: Store, target: Queue | str) -> tuple[str, Stamps]:
        return (target, PLAIN) if isinstance(target, str) else original(store, target)

    patch.attribute(Store, "_queue_of", trusting)


# ---------------------------------------------------------------- names are kept


def _shared_becomes(patch: Patch, change: Any) -> None:
    original = names.shared
    patch.attribute(names, "shared", lambda name, what: change(original(name, what)))


@mutant("names-lose-their-outer-spaces", kills="NAME-05")
def names_lose_their_outer_spaces(patch: Patch) -> None:
    _shared_becomes(patch, lambda name: name.strip())


@mutant("names-cut-at-63-bytes", kills="NAME-05")
def names_cut_at_63_bytes(patch: Patch) -> None:
    _shared_becomes(patch, lambda name: name.encode()[:63].decode("utf-8", "ignore"))


@mutant("names-case-folded", kills="NAME-05")
def names_case_folded(patch: Patch) -> None:
    _shared_becomes(patch, lambda name: name.lower())


def _cut(channel: str) -> str:
    return channel.encode()[:63].decode("utf-8", "ignore")


@mutant("channels-cut-at-63-bytes", kills="NAME-05")
class ChannelsCutAt63Bytes(MemEngine):
    async def notify(self, wakes: Sequence[NewWake]) -> None:
        await super().notify([wake._replace(channel=_cut(wake.channel)) for wake in wakes])

    async def watch(self, topic: Topic) -> Watch:
        is_channel = topic.kind is TopicKind.CHANNEL
        return await super().watch(topic._replace(name=_cut(topic.name)) if is_channel else topic)


# ---------------------------------------------------------------- numbers, durations, instants


@mutant("zero-limit-means-no-limit", kills="NAME-08")
def zero_limit_means_no_limit(patch: Patch) -> None:
    original = numbers.extent
    patch.attribute(numbers, "extent", lambda value, what: original(value, what) or 1_000_000)


@mutant("zero-ttl-accepted", kills="NAME-09")
def zero_ttl_accepted(patch: Patch) -> None:
    original = numbers.duration

    def lax(value: object, what: str, **bounds: Any) -> int:
        return 1 if bounds.get("positive") and value == 0 else original(value, what, **bounds)

    patch.attribute(numbers, "duration", lax)


@mutant("bool-taken-for-a-number", kills="NAME-11")
def bool_taken_for_a_number(patch: Patch) -> None:
    for name in ("duration", "integer"):
        _take_bools(patch, name)


def _take_bools(patch: Patch, name: str) -> None:
    original = getattr(numbers, name)

    def lax(value: object, what: str, **bounds: Any) -> Any:
        return original(int(value) if isinstance(value, bool) else value, what, **bounds)

    patch.attribute(numbers, name, lax)


@mutant("naive-datetime-accepted", kills="NAME-11")
def naive_datetime_accepted(patch: Patch) -> None:
    original = numbers.instant

    def lax(value: Any, what: str) -> int:
        try:
            return original(value, what)
        except InvalidArgument:
            if isinstance(value, dt.datetime):
                return original(value.replace(tzinfo=dt.UTC), what)
            raise

    patch.attribute(numbers, "instant", lax)


@mutant("durations-cut-to-milliseconds", kills="NAME-11", wide="rows stop one microsecond before an instant")
def durations_cut_to_milliseconds(patch: Patch) -> None:
    original = numbers.duration

    def cut(value: object, what: str, **bounds: Any) -> int:
        return original(value, what, **bounds) // 1_000 * 1_000

    patch.attribute(numbers, "duration", cut)


@mutant("instants-are-not-clamped", kills="NAME-10")
def instants_are_not_clamped(patch: Patch) -> None:
    def overflowing(instant: int, delta: int) -> int:
        if not numbers.MIN_INSTANT <= instant + delta <= numbers.MAX_INSTANT:
            raise DatabaseError("timestamp out of range")
        return instant + delta

    for module in (queue, backlog, lock):
        patch.attribute(module, "shift", overflowing)


@mutant("trim-at-the-end-overflows", kills="NAME-10")
class TrimAtTheEndOverflows(MemEngine):
    async def trim_events(self, stream: str, horizon: int) -> int:
        return 0 if horizon + 1 > numbers.MAX_INT64 else await super().trim_events(stream, horizon)
