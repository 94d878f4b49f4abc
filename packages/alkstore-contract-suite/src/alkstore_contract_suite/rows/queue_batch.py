"""Row Q-22: enqueueing many jobs at once."""

from collections.abc import Iterator

from alkstore import CodecError, EnqueueOpts, InvalidArgument, Queue
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._queue import (
    STORED,
    later,
    read,
    seconds,
    states,
)


@row(
    "Q-22",
    text="enqueue_batch takes an iterable and returns ids in payload order; an empty one gives [].",
    oracle="payloads and options read back by id",
    modes=STORED,
)
async def a_batch_keeps_the_order_of_its_payloads(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name, max_attempts=4)
    now = await ctx.now()
    payloads = [{"n": n} for n in range(50)]
    ctx.random.shuffle(payloads)
    by_list = await queue.enqueue_batch(payloads, priority=2, delay=1, headers={"trace": "7"})
    by_generator = await queue.enqueue_batch(n * n for n in range(5))
    by_tuple = await queue.enqueue_batch((None, [], "text"))

    queue = (await ctx.turn()).queue(name)
    jobs = await queue.list(limit=100)
    found = {job.id: job.payload for job in jobs}
    ctx.expect([found[job_id] for job_id in by_list], payloads, "ids come in payload order")
    ctx.expect([found[job_id] for job_id in by_generator], [0, 1, 4, 9, 16], "a generator is an iterable")
    ctx.expect([found[job_id] for job_id in by_tuple], [None, [], "text"], "ids come in payload order")
    shared = {(job.priority, job.run_at, job.max_attempts, job.headers["trace"]) for job in jobs[:50]}
    ctx.expect(shared, {(2, later(now, 1), 4, "7")}, "the options are those of every payload")
    ctx.expect(await queue.enqueue_batch([]), [], "an empty batch gives an empty list")
    ctx.expect(await queue.enqueue_batch(iter(())), [], "an empty batch gives an empty list")
    ctx.expect(len(await states(queue)), 58, "an empty batch stores nothing")


@row(
    "Q-22",
    text="each gives every payload its own options, over the call's.",
    oracle="the options read back by id",
    modes=("plain", "second"),
)
async def each_gives_a_payload_its_own_options(ctx: Context) -> None:
    name = ctx.name("mail")
    now = await ctx.now()
    each = [
        EnqueueOpts(priority=3, delay=7, headers={"a": "1"}),
        EnqueueOpts(),
        EnqueueOpts(run_at=later(now, 40), max_attempts=1, visibility_timeout=2, base_delay=0, expires=60),
    ]
    ids = await ctx.store.queue(name, max_attempts=6).enqueue_batch([1, 2, 3], each=each, priority=1)

    queue = (await ctx.turn()).queue(name)
    one, two, three = [await read(ctx, queue, job_id) for job_id in ids]
    found = (one.priority, one.run_at, one.max_attempts, dict(one.headers))
    ctx.expect(found, (3, later(now, 7), 6, {"a": "1"}), "each payload has its own options")
    ctx.expect(
        (two.priority, two.run_at, two.max_attempts), (1, now, 6), "what each leaves out is the call's"
    )
    stamps = (three.run_at, three.max_attempts, three.visibility_timeout, three.base_delay)
    ctx.expect(stamps, (later(now, 40), 1, seconds(2), seconds(0)), "each payload has its own stamps")
    ctx.expect((three.priority, three.expires_at), (1, later(now, 60)), "each payload has its own stamps")


def _torn() -> Iterator[object]:
    yield 1
    raise RuntimeError("the caller's own generator failed")


@row(
    "Q-22",
    text="A batch is atomic: with one bad payload or option nothing of it is stored.",
    oracle="the typed error and an unchanged queue",
    modes=STORED,
    kills=("batch-not-atomic",),
)
async def a_batch_with_one_bad_payload_stores_nothing(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    control = await queue.enqueue("control")
    async with ctx.refuses(CodecError, "one bad payload refuses the batch"):
        await queue.enqueue_batch([1, 2, object(), 4])
    async with ctx.refuses(CodecError, "one bad payload refuses the batch"):
        await queue.enqueue_batch([1, {"deep": [float("nan")]}])
    async with ctx.refuses(InvalidArgument, "one bad option refuses the batch"):
        await queue.enqueue_batch([1, 2], each=[EnqueueOpts(), EnqueueOpts(max_attempts=0)])
    async with ctx.refuses(InvalidArgument, "one bad option refuses the batch"):
        await queue.enqueue_batch([1, 2], delay=float("nan"))
    async with ctx.refuses(InvalidArgument, "there is one EnqueueOpts a payload"):
        await queue.enqueue_batch([1, 2], each=[EnqueueOpts()])
    async with ctx.refuses(RuntimeError, "the caller's own error comes through"):
        await queue.enqueue_batch(_torn())

    queue = (await ctx.turn()).queue(name)
    ctx.expect(list(await states(queue)), [control], "a refused batch stores nothing")


@row(
    "Q-22",
    text="A string, bytes or a mapping is not a batch of payloads.",
    oracle="InvalidArgument, nothing stored, in a transaction too",
    modes=("plain", "second"),
)
async def a_string_is_not_a_batch(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    for payloads in ("text", "", b"bytes", {"a": 1}, {}):
        async with ctx.refuses(InvalidArgument, "str, bytes and mappings are no batch"):
            await queue.enqueue_batch(payloads)
    async with ctx.store.begin_tx() as tx:
        async with ctx.refuses(InvalidArgument, "str, bytes and mappings are no batch"):
            await tx.enqueue_batch(name, "text")
        ids = await tx.enqueue_batch(queue, ["a", "b"])
        ctx.expect(await tx.enqueue_batch(queue, []), [], "an empty batch gives an empty list")

    queue = (await ctx.turn()).queue(name)
    ctx.expect(list(await states(queue)), ids, "a refused batch stores nothing")


@row(
    "Q-22",
    text="A batch wakes its queue: each job of it finds a waiter.",
    oracle="three waiting claims get the three jobs in claim order",
    modes=("plain", "second"),
    depends=("Q-21",),
)
async def a_batch_wakes_every_waiter_it_can_serve(ctx: Context) -> None:
    name = ctx.name("mail")
    queue: Queue = ctx.store.queue(name)
    waiters = [ctx.start(queue.claim()) for _ in range(4)]
    await ctx.settle()

    ids = await (await ctx.turn()).queue(name).enqueue_batch(["a", "b", "c"])

    handles = [await ctx.soon(waiter, "a batch wakes who waits for its queue") for waiter in waiters[:3]]
    found = [handle.job.id for handle in handles if handle is not None]
    ctx.expect(sorted(found), ids, "each job of a batch finds a waiter")
    await ctx.settle()
    ctx.still_waiting(waiters[3], "a waiter without a job goes on waiting")
