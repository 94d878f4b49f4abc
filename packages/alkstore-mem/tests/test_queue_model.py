"""The heaps against a list that is sorted anew at every claim, under clocks that step back and forth."""

from collections.abc import Iterable
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from alkstore.engine import (
    Ack,
    Cancel,
    EngineTransaction,
    Fail,
    Heartbeat,
    JobCounts,
    JobFilter,
    JobRecord,
    JobState,
    NewJob,
    Redrive,
    Release,
    Retry,
    Settle,
)
from alkstore.testing import ManualClock
from alkstore_mem.engine import MemEngine

SECOND = 1_000_000
EVERYTHING = JobFilter(limit=10_000)


class Put(NamedTuple):
    priority: int
    delay: int
    window: int
    most: int
    expires: int | None


class Claim(NamedTuple):
    most: int


class Change(NamedTuple):
    kind: str
    claim: int
    by: int


class Move(NamedTuple):
    by: int


class Hold(NamedTuple):
    claim: int


class End(NamedTuple):
    which: int
    commits: bool


class Sweep(NamedTuple):
    pass


Step = Put | Claim | Change | Move | Hold | End | Sweep

steps = st.one_of(
    st.builds(
        Put,
        st.integers(-1, 1),
        st.integers(0, 4),
        st.integers(1, 3),
        st.integers(1, 3),
        st.one_of(st.none(), st.integers(0, 6)),
    ),
    st.builds(Claim, st.integers(1, 3)),
    st.builds(
        Change,
        st.sampled_from(["ack", "retry", "fail", "release", "heartbeat", "cancel", "redrive"]),
        st.integers(0, 9),
        st.integers(1, 4),
    ),
    st.builds(Move, st.integers(-4, 4)),
    st.builds(Hold, st.integers(0, 9)),
    st.builds(End, st.integers(0, 3), st.booleans()),
    st.builds(Sweep),
)


class Model:
    """All rows in one dict; every question is answered by looking at each of them."""

    def __init__(self) -> None:
        self.rows: dict[int, JobRecord] = {}
        self.held: set[int] = set()

    def is_live(self, row: JobRecord, now: int) -> bool:
        return row.id in self.held or (row.deadline is not None and now < row.deadline)

    def is_expired(self, row: JobRecord, now: int) -> bool:
        return row.expires_at is not None and now >= row.expires_at

    def is_spent(self, row: JobRecord, now: int) -> bool:
        lapsed = row.deadline is not None and not self.is_live(row, now)
        return lapsed and row.attempts >= row.max_attempts

    def is_claimable(self, row: JobRecord, now: int) -> bool:
        if row.state is JobState.DEAD or self.is_expired(row, now) or self.is_live(row, now):
            return False
        return not self.is_spent(row, now) and (row.deadline is not None or now >= row.run_at)

    def claimable(self, now: int) -> list[int]:
        rows = [row for row in self.rows.values() if self.is_claimable(row, now)]
        return [row.id for row in sorted(rows, key=lambda row: (-row.priority, row.run_at, row.id))]

    def next_at(self, now: int) -> int | None:
        instants = []
        for row in self.rows.values():
            if row.state is JobState.DEAD or self.is_expired(row, now) or row.id in self.held:
                continue
            at = row.run_at if row.deadline is None else row.deadline
            if now < at and (row.deadline is None or row.attempts < row.max_attempts):
                instants.append(at)
        return min(instants, default=None)

    def bury(self, rows: Iterable[JobRecord], error: str, now: int) -> int:
        gone = list(rows)
        for row in gone:
            self.rows[row.id] = row._replace(
                state=JobState.DEAD,
                worker_id=None,
                deadline=None,
                token=None,
                retry_error=None,
                last_error=error,
                died_at=now,
            )
        return len(gone)

    def bury_spent(self, now: int) -> int:
        spent = [row for row in self.rows.values() if self.is_spent(row, now)]
        return self.bury(spent, "visibility timeout lapsed on the last attempt", now)

    def sweep(self, now: int) -> int:
        expired = [
            row
            for row in self.rows.values()
            if row.state is not JobState.DEAD and self.is_expired(row, now) and not self.is_live(row, now)
        ]
        return self.bury(expired, "expired", now) + self.bury_spent(now)

    def counts(self, now: int) -> JobCounts:
        ready = self.claimable(now)
        live = [row for row in self.rows.values() if row.state is not JobState.DEAD]
        processing = sum(self.is_live(row, now) for row in live)
        free = [row for row in live if not self.is_live(row, now)]
        stale = sum(self.is_expired(row, now) or self.is_spent(row, now) for row in free)
        age = max((now - self.rows[id].run_at for id in ready), default=None)
        delayed = len(live) - processing - stale - len(ready)
        return JobCounts(len(ready), delayed, processing, stale, len(self.rows) - len(live), age)


class Run:
    """One engine and the model beside it, step by step."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = MemEngine(self.clock)
        self.model = Model()
        self.claims: list[JobRecord] = []
        self.ids: list[int] = []
        self.open: list[tuple[EngineTransaction, int]] = []

    async def do(self, step: Step) -> None:
        now = self.clock.now()
        match step:
            case Put():
                await self.put(step)
            case Claim(most):
                await self.claim(most, now)
            case Change():
                await self.change(step, now)
            case Move(by):
                await self.clock.advance(by)
            case Hold(claim):
                await self.hold(claim, now)
            case End(which, commits):
                await self.end(which, commits=commits)
            case Sweep():
                assert await self.engine.sweep_jobs("mail") == self.model.sweep(now)

    async def put(self, step: Put) -> None:
        expires = None if step.expires is None else step.expires * SECOND
        job = NewJob(
            "mail", b"1", b"{}", step.priority, step.delay * SECOND, None, step.window * SECOND, step.most, 0, expires
        )  # fmt: skip
        (id,) = await self.engine.insert_jobs([job])
        (row,) = await self.engine.find_jobs("mail", JobFilter(ids=(id,)))
        self.model.rows[id] = row
        self.ids.append(id)

    async def claim(self, count: int, now: int) -> None:
        self.model.bury_spent(now)
        expected = self.model.claimable(now)[:count]

        claimed = await self.engine.claim_jobs("mail", [f"w{n}" for n in range(count)])

        assert [row.id for row in claimed.jobs] == expected
        for row in claimed.jobs:
            old = self.model.rows[row.id]
            assert (row.attempts, row.deadline) == (old.attempts + 1, now + old.visibility_timeout)
            self.model.rows[row.id] = row
            self.claims.append(row)
        if len(expected) < count:
            assert claimed.next_at == self.model.next_at(now)

    def settle(self, step: Change) -> tuple[Settle, int] | None:
        if step.kind in ("cancel", "redrive"):
            if not self.ids:
                return None
            id = self.ids[step.claim % len(self.ids)]
            return (Cancel("mail", id) if step.kind == "cancel" else Redrive("mail", id)), id
        if not self.claims:
            return None
        claim = self.claims[-1 - step.claim % len(self.claims)]
        token = claim.token or 0
        settle: dict[str, Settle] = {
            "ack": Ack("mail", claim.id, token),
            "retry": Retry("mail", claim.id, token, step.by * SECOND, "again"),
            "fail": Fail("mail", claim.id, token, "no"),
            "release": Release("mail", claim.id, token),
            "heartbeat": Heartbeat("mail", claim.id, token, step.by * SECOND),
        }
        return settle[step.kind], claim.id

    async def change(self, step: Change, now: int) -> None:
        wanted = self.settle(step)
        if wanted is None:
            return
        settle, id = wanted
        row = self.model.rows.get(id)
        expected = None if row is None else self.expect(settle, row, now)

        assert await self.engine.settle_jobs([settle]) == [expected]

    def expect(self, settle: Settle, row: JobRecord, now: int) -> int | None:
        rows = self.model.rows
        free = row._replace(state=JobState.PENDING, worker_id=None, deadline=None, token=None)
        if isinstance(settle, Cancel):
            return None if row.state is not JobState.PENDING else (rows.pop(row.id), now)[1]
        if isinstance(settle, Redrive):
            if row.state is not JobState.DEAD:
                return None
            rows[row.id] = free._replace(
                run_at=now, attempts=0, expires_at=None, last_error=None, died_at=None
            )
            return now
        if row.id in self.model.held or row.token != settle.token or not self.model.is_live(row, now):
            return None
        match settle:
            case Ack():
                del rows[row.id]
            case Retry():
                rows[row.id] = free._replace(run_at=now + settle.delay, retry_error="again")
            case Fail():
                self.model.bury([row], "no", now)
            case Release():
                rows[row.id] = free._replace(attempts=row.attempts - 1)
            case Heartbeat():
                rows[row.id] = row._replace(deadline=now + settle.window)
                return now + settle.window
        return now

    async def hold(self, which: int, now: int) -> None:
        if not self.claims:
            return
        claim = self.claims[-1 - which % len(self.claims)]
        row = self.model.rows.get(claim.id)
        is_mine = row is not None and row.token == claim.token and row.id not in self.model.held
        expected = now if row is not None and is_mine and self.model.is_live(row, now) else None
        tx = await self.engine.begin()

        assert await tx.settle_jobs([Ack("mail", claim.id, claim.token or 0)]) == [expected]

        if expected is None:
            await tx.rollback()
        else:
            self.model.held.add(claim.id)
            self.open.append((tx, claim.id))

    async def end(self, which: int, *, commits: bool) -> None:
        if not self.open:
            return
        tx, id = self.open.pop(which % len(self.open))
        self.model.held.discard(id)
        if commits:
            del self.model.rows[id]
            await tx.commit()
        else:
            await tx.rollback()

    async def check(self) -> None:
        assert await self.engine.find_jobs("mail", EVERYTHING) == [
            row for _, row in sorted(self.model.rows.items())
        ]
        assert await self.engine.count_jobs("mail") == self.model.counts(self.clock.now())


@settings(deadline=None, max_examples=150)
@given(st.lists(steps, max_size=60))
async def test_every_claim_settle_and_sweep_does_what_a_sorted_list_says(todo: list[Step]) -> None:
    run = Run()

    for step in todo:
        await run.do(step)
        await run.check()


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.builds(Put, st.integers(-1, 1), st.integers(0, 9), st.just(2), st.just(9), st.none()), max_size=20
    ),
    st.lists(
        st.one_of(st.builds(Move, st.integers(-9, 9)), st.builds(Claim, st.integers(1, 9))), max_size=20
    ),
)
async def test_no_row_is_lost_however_the_clock_steps(puts: list[Put], walk: list[Step]) -> None:
    run = Run()
    for step in [*puts, *walk]:
        await run.do(step)

    await run.clock.advance(1_000)
    claimed = await run.engine.claim_jobs("mail", ["w"] * (len(puts) + 1))

    spent = {id for id, row in run.model.rows.items() if row.attempts >= row.max_attempts}
    assert {row.id for row in claimed.jobs} == set(run.ids) - spent
