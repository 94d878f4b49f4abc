"""VER-01 to VER-03: versions, registration, and what a consumer cannot change."""

import dataclasses
import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import alkstore
from alkstore import EnqueueOpts, JobHandle, Outbox, Queue, ScheduleOpts, Store, Stream, Tx
from alkstore_contract_suite import CONTRACT_VERSION
from alkstore_contract_suite.claims import is_claimed
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._entry_points import SPEC
from alkstore_contract_suite.rows._queue import read, take

STAMPS: Final = ("visibility_timeout", "max_attempts", "base_delay", "expires")
OF_A_JOB: Final = ("delay", "run_at", "priority", *STAMPS, "headers")

OPTIONS: Final[Mapping[tuple[type, str], tuple[str, ...]]] = {
    (Store, "queue"): STAMPS,
    (Store, "schedule"): ("anchor", "priority", *STAMPS),
    (Store, "lock"): ("timeout",),
    (Queue, "enqueue"): OF_A_JOB,
    (Queue, "enqueue_batch"): ("each", *OF_A_JOB),
    (Queue, "claim_one"): ("worker_id",),
    (Queue, "claim_batch"): ("worker_id",),
    (Queue, "claim"): ("timeout", "worker_id"),
    (Queue, "claims"): ("stop", "worker_id"),
    (Queue, "run_once"): ("worker_id",),
    (Queue, "list"): ("state", "error", "after", "limit"),
    (Queue, "purge_dead"): ("older_than",),
    (JobHandle, "retry"): ("error", "delay"),
    (Stream, "publish"): ("key", "headers"),
    (Stream, "publish_batch"): ("key", "keys"),
    (Stream, "subscribe"): ("after",),
    (Outbox, "enqueue"): OF_A_JOB,
    (Outbox, "run_once"): ("worker_id",),
    (Outbox, "run"): ("stop", "concurrency"),
    (Tx, "enqueue"): OF_A_JOB,
    (Tx, "enqueue_batch"): ("each", *OF_A_JOB),
    (Tx, "outbox_enqueue"): OF_A_JOB,
    (Tx, "publish"): ("key", "headers"),
    (Tx, "publish_batch"): ("key", "keys"),
    (Tx, "save_offset"): ("after",),
}
"""What stands behind the star, for every operation that has options."""

REGISTERED: Final = ("durable", "multi_process", "sql", "listen", "reconnects", "notify_limit")
"""The capabilities that every registration names; what else it names is compared too."""


@row(
    "VER-01",
    text="alkstore.CONTRACT_VERSION and the suite's stamp are equal.",
    oracle="two equal strings",
    kills=("core-of-another-contract",),
)
async def the_suite_pins_the_contract_of_core(ctx: Context) -> None:
    ctx.expect(alkstore.CONTRACT_VERSION, CONTRACT_VERSION, "core and suite are of one contract version")


@row(
    "VER-02",
    text="There is no capability query at run time for consumers.",
    oracle="no public name of a store speaks of capabilities, features or its engine",
    kills=("a-store-tells-its-engine",),
)
async def a_store_tells_nothing_of_its_engine(ctx: Context) -> None:
    words = ("capab", "feature", "support", "trait", "engine", "backend", "dialect", "driver")
    public = [name for name in dir(Store) if not name.startswith("_")]
    found = [name for name in public if any(word in name.lower() for word in words)]
    ctx.expect(found, [], "a store has no capability query")
    ctx.that({"queue", "begin_tx", "aclose"} <= set(public), "a store has its operations", observed=public)


@row(
    "VER-02",
    text="A registration names the engine's contract, its capabilities, and a reason for each omitted row.",
    oracle="the registration beside the column: version, capability by capability, row by row",
    kills=("a-registration-hides-a-capability", "a-registration-omits-a-row-of-its-own"),
    hints="the column gives the hook's answer by `registration()`; the ready columns take it as an argument",
)
async def the_registration_says_what_the_column_says(ctx: Context) -> None:
    claims, registered = ctx.claims, ctx.claims.registration
    if registered is None:
        ctx.skip_inconclusive("the column must give the engine's registration()")
    ctx.expect(registered.contract_version, claims.contract, "the registration names the column's contract")
    unnamed = [word for word in REGISTERED if word not in registered.capabilities]
    ctx.expect(unnamed, [], "the registration names every capability")
    said = {word: is_claimed(value) for word, value in registered.capabilities.items()}
    ctx.expect(said, {word: claims.has(word) for word in said}, "it has the capabilities that the column has")
    ctx.expect(registered.durable, claims.has("durable"), "it is as durable as the column is")
    ctx.expect(sorted(registered.omitted), sorted(claims.omitted), "it omits the rows that the column omits")
    unreasoned = [id for id, reason in registered.omitted.items() if not reason.strip()]
    ctx.expect(unreasoned, [], "each omitted row has a reason")


@row(
    "VER-03",
    text="Read-only values cannot be changed by a consumer.",
    oracle="setting, adding and deleting an attribute is refused, and the value is as before",
    needs=("listen",),
    kills=("values-can-be-changed",),
)
async def a_value_cannot_be_changed(ctx: Context) -> None:
    for label, (value, attribute) in (await _values(ctx, ctx.store)).items():
        before = getattr(value, attribute)
        for change in (
            partial(setattr, value, attribute, "changed"),
            partial(setattr, value, "added", 1),
            partial(delattr, value, attribute),
        ):
            with ctx.refuses_sync((AttributeError, TypeError), f"a {label} cannot be changed"):
                change()
        ctx.expect(getattr(value, attribute), before, f"a {label} is as before")
        ctx.that(not hasattr(value, "__dict__"), f"a {label} is slotted")


async def _values(ctx: Context, store: Store) -> dict[str, tuple[object, str]]:
    """Give one of every read-only value, with an attribute to try."""
    id = await store.queue("q").enqueue(1)
    await store.stream("s").publish(1)
    await store.try_lock("l", 60)
    (event,) = await store.stream("s").read_since(0)
    async with store.listen("c") as wakes:
        await store.notify("c")
        wake = await ctx.soon(wakes.recv(), "a notify wakes")
    return {
        "Job": (await read(ctx, store.queue("q"), id), "priority"),
        "JobHandle.job": ((await take(ctx, store.queue("q"))).job, "state"),
        "StreamEvent": (event, "offset"),
        "Wake": (wake, "channel"),
        "Schedule": (await store.schedule("s", SPEC, "q", 1), "spec"),
        "LockInfo": ((await store.locks())[0], "fence"),
        "QueueStats": (await store.queue("q").stats(), "ready"),
        "EnqueueOpts": (EnqueueOpts(delay=1), "delay"),
        "ScheduleOpts": (ScheduleOpts(priority=1), "priority"),
    }


@row(
    "VER-03",
    text="Options are keyword-only, so that adding one is a minor change.",
    oracle="every option of every operation stands behind the star, and given by place it is a TypeError",
    kills=("options-by-place",),
)
async def options_are_keyword_only(ctx: Context) -> None:
    for (owner, operation), options in OPTIONS.items():
        parameters = inspect.signature(getattr(owner, operation)).parameters
        kinds = {name: parameters[name].kind if name in parameters else None for name in options}
        wanted = dict.fromkeys(options, inspect.Parameter.KEYWORD_ONLY)
        ctx.expect(kinds, wanted, f"the options of {owner.__name__}.{operation} are keyword-only")
    for kind in (EnqueueOpts, ScheduleOpts):
        fields = {field.name: field.kw_only for field in dataclasses.fields(kind)}
        ctx.expect(set(fields.values()), {True}, f"the fields of {kind.__name__} are keyword-only")
        ctx.that(kind() == kind(), f"every field of {kind.__name__} is optional")
    store: Any = ctx.store
    with ctx.refuses_sync(TypeError, "an option given by place is refused"):
        store.queue("q", 30)
    with ctx.refuses_sync(TypeError, "an option given by place is refused"):
        store.queue("q").enqueue(1, 5)
    ctx.expect(await store.queues(), [], "a refused call does nothing")
