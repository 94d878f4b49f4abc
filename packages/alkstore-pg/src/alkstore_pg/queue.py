"""Jobs: what becomes of a row, and whom a change concerns. The statements are in sql/queue.sql."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from alkstore import statements
from alkstore.engine import (
    Ack,
    AlikeJobs,
    Cancel,
    Claimed,
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
    Topic,
    TopicKind,
)
from alkstore.numbers import MAX_INSTANT, MAX_INT64, MIN_INT64, shift
from alkstore_pg.link import Operation
from alkstore_pg.mark import Answer, Plan
from alkstore_pg.session import Row, Session
from alkstore_pg.wake import Woken

__all__ = [
    "claim",
    "count",
    "find",
    "insert",
    "names",
    "purge",
    "settle",
    "settled_at",
    "sweep",
    "woken_by_jobs",
    "woken_by_settles",
]

_SQL: Final = statements.load("alkstore_pg", "queue")

STATES: Final = (JobState.PENDING, JobState.PROCESSING, JobState.DEAD)
NUMBERS: Final = {state: number for number, state in enumerate(STATES)}

FIND: Final[Mapping[JobState | None, str]] = {
    None: _SQL["find"],
    JobState.PENDING: _SQL["find_pending"],
    JobState.PROCESSING: _SQL["find_processing"],
    JobState.DEAD: _SQL["find_dead"],
}

_INSERT_READY: Final = _SQL["insert_ready"]

PROCESSING: Final = JobState.PROCESSING
QUEUE: Final = TopicKind.QUEUE  # an enum's member costs a metaclass call at every access in Python 3.11

KINDS: Final[Mapping[type[Settle], int]] = {
    Ack: 1,
    Retry: 2,
    Fail: 3,
    Release: 4,
    Heartbeat: 5,
    Cancel: 6,
    Redrive: 7,
}

SWEPT_AT_ONCE: Final = 10_000
"""Rows that one commit of a sweep moves at most, so that a million of them do not hold up everybody."""

PAUSES: Final = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Seconds after which a sweep looks again at what others have locked: a claim has a row for a moment, an open transaction
for as long as it likes."""

Run: TypeAlias = Callable[[Operation[Sequence[Row]]], Awaitable[Sequence[Row]]]
"""Runs an operation that commits by itself."""

_tickets: Final = random.Random()
"""Not the module's own source, which an application may seed: a token is never to come again."""

_new_record: Final[Callable[[type[JobRecord], tuple[object, ...]], JobRecord]] = tuple.__new__
"""A record from its fields in their order: a third of the time that the named tuple's own constructor takes."""

# ---------------------------------------------------------------- whom a change concerns


def woken_by_jobs(jobs: Sequence[NewJob], now: Callable[[], int]) -> Sequence[Woken]:
    """Give each queue once, and the least instant at which one of its jobs is ready (None: now)."""
    if isinstance(jobs, AlikeJobs):
        jobs = (jobs.pattern,)
    if len(jobs) == 1 and jobs[0].delay is None and jobs[0].run_at is None:
        return _woken_now(jobs[0].queue)
    ready: dict[str, int | None] = {}
    for job in jobs:
        if job.delay is None and job.run_at is None:
            ready[job.queue] = None
        else:
            instant = now()
            at = job.run_at if job.delay is None else shift(instant, job.delay)
            _sooner(ready, job.queue, at, instant)
    return _woken(ready)


@lru_cache(maxsize=1_000)
def _woken_now(queue: str) -> Sequence[Woken]:
    return tuple(_woken({queue: None}))


def woken_by_settles(settles: Iterable[Settle], now: Callable[[], int]) -> Sequence[Woken]:
    """Give each queue in which a row may have become claimable, and when."""
    ready: dict[str, int | None] = {}
    for each in settles:
        if type(each) is Ack:
            continue
        if isinstance(each, (Retry, Heartbeat)):
            instant = now()
            after = each.delay if isinstance(each, Retry) else each.window
            _sooner(ready, each.queue, shift(instant, after), instant)
        elif isinstance(each, (Release, Redrive)):
            ready[each.queue] = None
    return _woken(ready)


def _sooner(ready: dict[str, int | None], queue: str, at: int | None, now: int) -> None:
    if at is None or at <= now:
        ready[queue] = None
        return
    known = ready.get(queue, at)
    ready[queue] = None if known is None else min(known, at)


def _woken(ready: Mapping[str, int | None]) -> Sequence[Woken]:
    return [Woken(Topic(QUEUE, queue), at) for queue, at in ready.items()]


# ---------------------------------------------------------------- the seam, in its order


def insert(
    on: Session, jobs: Sequence[NewJob], texts: Sequence[str], scheduled_for: Sequence[int | None] = ()
) -> Coroutine[object, object, Sequence[int]]:
    """Insert all or nothing; ``scheduled_for`` has the boundary of each job that a schedule fires."""
    if len(jobs) == 1:
        return _insert_one(on, jobs[0], texts, scheduled_for[0] if scheduled_for else None)
    return _insert_many(on, jobs, texts, scheduled_for)


async def _insert_many(
    on: Session, jobs: Sequence[NewJob], texts: Sequence[str], scheduled_for: Sequence[int | None]
) -> Sequence[int]:
    if not jobs:
        return ()
    if not scheduled_for and (alike := _alike(jobs)) is not None:
        queue, _, *rest = alike.pattern
        rows = await on.fetch(_SQL["insert_alike"], queue, alike.payloads, *rest, list(texts))
    else:
        columns = map(list, zip(*jobs, strict=True))
        boundaries = list(scheduled_for) or [None] * len(jobs)
        rows = await on.fetch(_SQL["insert_mixed"], *columns, boundaries, list(texts))
    return rows[0][0]  # type: ignore[no-any-return]


async def _insert_one(on: Session, job: NewJob, texts: Sequence[str], boundary: int | None) -> Sequence[int]:
    if texts:
        rows = await on.fetch(_SQL["insert_and_wake"], *job, boundary, list(texts))
    else:
        queue, payload, headers, priority, delay, run_at, window, most, base, expires = job
        if delay is None and run_at is None and expires is None and boundary is None:
            rows = await on.fetch(_INSERT_READY, queue, payload, headers, priority, window, most, base)
        else:
            rows = await on.fetch(_SQL["insert"], *job, boundary)
    return (rows[0][0],)


async def find(on: Session, queue: str, where: JobFilter) -> list[JobRecord]:
    error = where.error
    if where.limit <= 0 or (error is not None and not _is_storable(error)):
        return []
    if where.ids is None:
        rows = await on.fetch(FIND[where.state], queue, where.after, error, where.limit)
    else:
        ids = [id for id in where.ids if MIN_INT64 <= id <= MAX_INT64]
        state = None if where.state is None else NUMBERS[where.state]
        rows = await on.fetch(_SQL["find_by_ids"], queue, ids, error, where.limit, state)
    return [_record(row) for row in rows]


async def count(on: Session, queue: str) -> JobCounts:
    (row,) = await on.fetch(_SQL["count"], queue)
    return JobCounts(*row)


async def claim(on: Session, queue: str, worker_ids: Sequence[str], plan: Plan) -> Answer:
    """Take jobs. `Answer.claimed` is None if there is so much to put in its place first that it takes another commit."""
    wanted = len(worker_ids)
    ticket = _tickets.getrandbits(63)
    distinct = set(worker_ids)
    workers = list(distinct) if len(distinct) == 1 else list(worker_ids)
    time = asyncio.get_running_loop().time
    sent = time()
    rows = await on.fetch(
        _SQL["claim"], queue, workers, wanted, ticket, list(plan.levels), list(plan.marks), plan.looked
    )
    received = time()
    *taken, tail = rows
    is_again, now, took, is_slow, next_at, cleared = tail[3], tail[4], tail[6], tail[7], tail[10], tail[15]
    claimed = None
    if not is_again and (taken or plan.is_full):
        jobs = [_claimed(row, queue, ticket) for row in taken]
        jobs.sort(key=_order)
        if len(jobs) < wanted and not plan.is_full:
            next_at = min(shift(now, plan.pause), MAX_INSTANT if next_at is None else next_at)
        claimed = Claimed(jobs, next_at)
    return Answer(claimed, now, sent, received, took, bool(is_slow), cleared or ())


async def settle(
    on: Session, settles: Sequence[Settle], texts: Sequence[str], patience: int
) -> Sequence[int | None]:
    """Change each by itself, all in one commit; what waits for others waits for at most ``patience`` ms."""
    if settles and _are_acks_of_one_queue(settles):
        return await _ack(on, settles, texts, patience)
    return await _settle(on, settles, texts, patience)


def settled_at(settles: Sequence[Settle], answers: Sequence[int | None]) -> int | None:
    """Give the instant at which the server began on settles, if a heartbeat among them tells it.

    Who renews a claim sleeps until an instant that this gave; nobody waits for one that another settle gives.
    """
    for each, answer in zip(settles, answers, strict=True):
        if type(each) is Heartbeat and answer is not None and answer < MAX_INSTANT:
            return answer - each.window
    return None


async def sweep(run: Run, queue: str) -> int:
    """Move what qualified when it began, in several commits; what others have locked for long is passed over."""
    total, before, is_left = await _sweep_once(run, queue, None)
    for pause in PAUSES:
        if not is_left:
            break
        await asyncio.sleep(pause)
        moved, before, is_left = await _sweep_once(run, queue, before)
        total += moved
    return total


async def purge(on: Session, queue: str, older_than: int) -> int:
    ((purged,),) = await on.fetch(_SQL["purge"], queue, older_than)
    return int(purged)


async def names(on: Session) -> list[str]:
    return sorted(name for (name,) in await on.fetch(_SQL["names"]))


# ---------------------------------------------------------------- sweeps


async def _sweep_once(run: Run, queue: str, before: int | None) -> tuple[int, int, bool]:
    """Give how many rows that qualified at an instant (None: now) were moved, that instant, and if others have more."""
    total = 0
    cursor: Sequence[int | None] = (None, None, None)
    while True:
        ((instant, moved, is_left, *cursor),) = await run(_sweeping(queue, before, cursor))
        before = instant
        total += moved
        if cursor[0] is None:
            return total, instant, is_left


def _sweeping(queue: str, before: int | None, cursor: Sequence[int | None]) -> Operation[Sequence[Row]]:
    return lambda on: on.fetch(_SQL["sweep"], queue, before, SWEPT_AT_ONCE, *cursor)


# ---------------------------------------------------------------- rows


def _alike(jobs: Sequence[NewJob]) -> AlikeJobs | None:
    """Give jobs as alike if they differ in their payloads alone."""
    if isinstance(jobs, AlikeJobs):
        return jobs
    queues, payloads, *rest = zip(*jobs, strict=True)
    if all(column.count(column[0]) == len(jobs) for column in (queues, *rest)):
        return AlikeJobs(jobs[0], payloads)
    return None


def _record(row: Row) -> JobRecord:
    return _new_record(JobRecord, (*row[:4], STATES[row[4]], *row[5:]))


def _claimed(row: Row, queue: str, ticket: int) -> JobRecord:
    (
        id, payload, headers, priority, run_at, expires_at, attempts, most, window, base, deadline, created_at, boundary,
        error, worker_id, _,
    ) = row  # fmt: skip
    return _new_record(JobRecord, (
        id, queue, payload, headers, PROCESSING, priority, run_at, expires_at, attempts, most, window, base,
        worker_id, deadline, created_at, boundary, error, None, None, ticket ^ id,
    ))  # fmt: skip


def _order(job: JobRecord) -> tuple[int, int, int]:
    return -job.priority, job.run_at, job.id


def _is_storable(text: str) -> bool:
    """Whether any stored text can hold this one: PostgreSQL takes no NUL, and UTF-8 has no lone surrogates."""
    try:
        return "\0" not in text and text.encode() is not None
    except UnicodeEncodeError:
        return False


# ---------------------------------------------------------------- settles


def _are_acks_of_one_queue(settles: Sequence[Settle]) -> bool:
    """Whether all are, each of another row: which of two of one row landed must be found out one after the other."""
    queue = settles[0].queue
    return all(
        type(each) is Ack and each.queue == queue and 0 < each.id <= MAX_INT64 for each in settles
    ) and len({each.id for each in settles}) == len(settles)


async def _ack(on: Session, acks: Sequence[Any], texts: Sequence[str], patience: int) -> Sequence[int | None]:
    pairs = sorted((each.id, each.token) for each in acks)
    ids, tokens = [id for id, _ in pairs], [token for _, token in pairs]
    ((now, gone),) = await on.fetch(_SQL["ack"], acks[0].queue, ids, tokens, list(texts), patience)
    if gone is not None and len(gone) == len(acks):
        return [now] * len(acks)
    there = frozenset(gone or ())
    return [now if each.id in there else None for each in acks]


async def _settle(
    on: Session, settles: Sequence[Settle], texts: Sequence[str], patience: int
) -> Sequence[int | None]:
    answers: list[int | None] = [None] * len(settles)
    turns: dict[tuple[str, int], int] = {}
    rows: list[tuple[object, ...]] = []
    numbers: list[int] = []
    for number, each in enumerate(settles):
        if MIN_INT64 <= each.id <= MAX_INT64:  # no row can have another one, and the driver would refuse it
            turn = turns[each.queue, each.id] = turns.get((each.queue, each.id), 0) + 1
            rows.append(_change(each, turn))
            numbers.append(number)
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 7
    ((landed, instants),) = await on.fetch(_SQL["settle"], *columns, list(texts), patience)
    for place, instant in zip(landed, instants, strict=True):
        answers[numbers[place - 1]] = instant
    return answers


def _change(settle: Settle, turn: int) -> tuple[object, ...]:
    amount = error = token = None
    if isinstance(settle, Retry):
        amount, error = settle.delay, settle.error
    elif isinstance(settle, Heartbeat):
        amount = settle.window
    elif isinstance(settle, Fail):
        error = settle.error
    if not isinstance(settle, (Cancel, Redrive)):
        token = settle.token
    return KINDS[type(settle)], turn, settle.queue, settle.id, token, amount, error
