"""Engines whose lists are wrong, or do more than look, and a core of other versions; each in exactly one way."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mutant import Patch, mutant

import alkstore
from alkstore import JobHandle, Queue, QueueStats, Store
from alkstore.engine import JobCounts, JobFilter, JobRecord, LockRecord, Names
from alkstore_mem import engine as mem_engine
from alkstore_mem.engine import MemEngine


@mutant("lists-in-order-of-creation", kills="ADM-01")
class ListsInOrderOfCreation(MemEngine):
    async def list_names(self) -> Names:
        queues = [name for name, backlog in self._queues._backlogs.items() if not backlog.is_empty]
        return (await super().list_names())._replace(queues=queues)


@mutant("queues-show-the-outboxes", kills="ADM-01")
def queues_show_the_outboxes(patch: Patch) -> None:
    async def all_of_them(store: Store) -> list[str]:
        return list((await store._engine.list_names()).queues)

    patch.attribute(Store, "queues", all_of_them)


@mutant("lapsed-locks-are-listed", kills="ADM-01")
class LapsedLocksAreListed(MemEngine):
    async def list_locks(self) -> Sequence[LockRecord]:
        return [
            LockRecord(name, lease.fence, lease.expires_at)
            for name, lease in sorted(self._locks._leases.items())
            if lease.expires_at is not None
        ]


@mutant("looking-sweeps", kills="ADM-01")
class LookingSweeps(MemEngine):
    async def count_jobs(self, queue: str) -> JobCounts:
        await super().sweep_jobs(queue)
        return await super().count_jobs(queue)


@mutant("looking-buries-the-lapsed", kills="ADM-01")
class LookingBuriesTheLapsed(MemEngine):
    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        backlog = self._queues._backlogs.get(queue)
        if backlog is not None:
            backlog._bury_lapsed(self._state.clock.now())
        return await super().find_jobs(queue, where)


@mutant("head-falls-after-a-trim", kills="ADM-01")
class HeadFallsAfterATrim(MemEngine):
    async def read_head(self, stream: str) -> int:
        events = await super().read_events(stream, 0, 1_000_000)
        return events[-1].offset if events else 0


# ---------------------------------------------------------------- versions and values


@mutant("core-of-another-contract", kills="VER-01")
def core_of_another_contract(patch: Patch) -> None:
    patch.attribute(alkstore, "CONTRACT_VERSION", "0.9")


@mutant("a-store-tells-its-engine", kills="VER-02")
def a_store_tells_its_engine(patch: Patch) -> None:
    Store.engine_name = "mem"  # type: ignore[attr-defined]  # a new name, which the patch only knows how to replace
    patch._undo.callback(delattr, Store, "engine_name")


def _registered(patch: Patch, **changed: Any) -> None:
    registration = mem_engine.alkstore_engine()
    patch.attribute(mem_engine, "alkstore_engine", lambda: replace(registration, **changed))


@mutant("a-registration-hides-a-capability", kills="VER-02")
def a_registration_hides_a_capability(patch: Patch) -> None:
    _registered(
        patch, capabilities={**mem_engine.alkstore_engine().capabilities, "listen": "not to be spoken of"}
    )


@mutant("a-registration-omits-a-row-of-its-own", kills="VER-02")
def a_registration_omits_a_row_of_its_own(patch: Patch) -> None:
    _registered(patch, omitted={**mem_engine.OMITTED, "Q-09": "nobody will look"})


@mutant("values-can-be-changed", kills="VER-03")
def values_can_be_changed(patch: Patch) -> None:
    patch.attribute(QueueStats, "__setattr__", object.__setattr__)


@mutant("options-by-place", kills="VER-03")
def options_by_place(patch: Patch) -> None:
    original = Queue.claim_one

    async def loose(queue: Queue, worker_id: str | None = None) -> JobHandle | None:
        return await original(queue, worker_id=worker_id)

    patch.attribute(Queue, "claim_one", loose)
