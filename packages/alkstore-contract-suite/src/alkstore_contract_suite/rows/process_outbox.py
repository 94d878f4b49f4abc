"""Rows OBX-05 and OBX-08 in several processes: one delivery at a time, and none lost with its process."""

import asyncio
import random
from typing import Final

from alkstore import JobHandle, Store
from alkstore_contract_suite.child import tell
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._process import folder, joined, marked, overlapped

WINDOW: Final = 60
ENTRIES: Final = 90


async def _deliver(store: Store, name: str, marks: str) -> list[int]:
    """Deliver until nothing is ready, being alone with each entry; gives their ids."""
    outbox = store.outbox(name)
    delivered = []

    async def delivery(handle: JobHandle) -> None:
        async with marked(marks, handle.job.id, random.uniform(0, 0.001)):
            delivered.append(handle.job.id)

    while await outbox.run_once(delivery):
        pass
    return delivered


@row(
    "OBX-08",
    text="Workers in several processes never deliver one row at the same time, and each row is delivered.",
    oracle="a mark for each row while it is delivered; what three processes delivered",
    modes=("process",),
    kills=("claim-gives-two-processes-one-job",),
)
async def processes_never_deliver_one_row_at_the_same_time(ctx: Context) -> None:
    outbox = ctx.store.outbox("mail")
    ids = [await outbox.enqueue(number) for number in range(ENTRIES)]
    children = await ctx.processes(3)
    with folder() as marks:
        found = await ctx.race(*(child.run(_deliver, "mail", marks) for child in children))
    ctx.expect(
        [told for child in children for told in child.heard()], [], "no row is delivered twice at a time"
    )
    ctx.expect(sorted(joined(found)), ids, "each row is delivered once")
    ctx.expect(await outbox.jobs.list(), [], "what was delivered is acked")
    overlapped(ctx, found)


async def _deliver_and_hang(store: Store, name: str) -> None:
    async def delivery(handle: JobHandle) -> None:
        tell(handle.job.id)
        await asyncio.Event().wait()

    await store.outbox(name).run_once(delivery)


@row(
    "OBX-05",
    text="A delivery that was killed is delivered again by another process after its window, and not before.",
    oracle="run_once in another process one microsecond before the window's end, and at it",
    modes=("process",),
)
async def a_killed_delivery_is_delivered_again_after_its_window(ctx: Context) -> None:
    outbox = ctx.store.outbox("mail")
    id = await outbox.enqueue("letter")
    killed, other = await ctx.processes(2)
    _ = killed.start(_deliver_and_hang, "mail")
    ctx.expect(await ctx.soon(killed.hear(), "an entry is delivered"), id, "an entry is delivered")
    await killed.kill()
    with folder() as marks:
        await ctx.advance(WINDOW - MICRO)
        found = await other.run(_deliver, "mail", marks)
        ctx.expect(found, [], "what a killed worker was delivering is held to its window's end")
        await ctx.advance(MICRO)
        found = await other.run(_deliver, "mail", marks)
    ctx.expect(found, [id], "what a killed worker was delivering is delivered again")
    ctx.expect(await outbox.jobs.list(), [], "and then acked")
