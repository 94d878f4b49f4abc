"""Jobs: what becomes of a row, and who is woken by it. The statements are in sql/queue.sql."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

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
from alkstore.numbers import MAX_INT64, MIN_INT64, shift
from alkstore_sqlite.connection import (
    Change,
    Row,
    Single,
    Statement,
    Steps,
    Tells,
    Woken,
    make_change,
    make_statement,
)
from alkstore_sqlite.hop import Operation
from alkstore_sqlite.pack import fits, pack, pack_by_id, portions

__all__ = ["claim", "count", "find", "insert", "inserting", "names", "purge", "settle", "settling", "sweep"]

_SQL: Final = statements.load("alkstore_sqlite", "queue")

EXPIRED: Final = "expired"
LAPSED: Final = "visibility timeout lapsed on the last attempt"

BURIED_BY_A_CLAIM: Final = 1_000
"""Rows that one claim moves to DEAD at most, so that no claim pays for everybody's neglect (Q-08)."""

STATES: Final = (JobState.PENDING, JobState.PROCESSING, JobState.DEAD)

FIND: Final[Mapping[JobState | None, str]] = {
    None: _SQL["find"],
    JobState.PENDING: _SQL["find_pending"],
    JobState.PROCESSING: _SQL["find_processing"],
    JobState.DEAD: _SQL["find_dead"],
}

INSERT: Final = _SQL["insert"]
INSERT_NEXT: Final = _SQL["insert_next"]
INSERT_ALIKE: Final = _SQL["insert_alike"]
IS_STIRRED: Final = _SQL["is_stirred"]
FIRST: Final = _SQL["first_in_line"]
HOLD: Final = _SQL["hold"]
ACK: Final = _SQL["ack"]

QUEUE: Final = TopicKind.QUEUE  # an enum's member costs a metaclass call at every access in Python 3.11

ROWS, COUNT, ID, EACH = Tells.ROWS, Tells.COUNT, Tells.ID, Tells.EACH

PROCESSING: Final = JobState.PROCESSING

HELD, LAST = 1, 2
"""Places of a claimed row: with attempts left, and on its last one."""

TIDIED_BY_A_CLAIM: Final = 10_000
"""Rows that time has moved which one commit puts in their place, so that a million of them do not hold up everybody."""

_tokens: Final = random.Random()
"""Not the module's own source, which an application may seed: a token is never to come again."""

SETTLE: Final = {
    Ack: ACK,
    Retry: _SQL["retry"],
    Fail: _SQL["fail"],
    Release: _SQL["release"],
    Heartbeat: _SQL["heartbeat"],
}

_new_claimed: Final[Callable[[type[Claimed], tuple[object, ...]], Claimed]] = tuple.__new__
_new_record: Final[Callable[[type[JobRecord], tuple[object, ...]], JobRecord]] = tuple.__new__
"""A record from its fields in their order: a third of the time that the named tuple's own constructor takes."""

# ---------------------------------------------------------------- the seam, in its order


def insert(
    jobs: Sequence[NewJob], now: int, scheduled_for: Sequence[int | None] = ()
) -> Steps[Change[Sequence[int]]]:
    """Insert all or nothing; ``scheduled_for`` has the boundary of each job that a schedule fires."""
    if scheduled_for:
        return (yield from _insert_kinds(jobs, scheduled_for, now))
    return (yield from inserting(jobs)(now))


def inserting(jobs: Sequence[NewJob]) -> Operation[Sequence[int]]:
    """Give what inserts all or nothing, a `Single` if one statement can."""
    if len(jobs) == 1:
        return _Insert(jobs[0])
    alike = together(jobs) if jobs else None
    return partial(_insert_kinds, jobs, ()) if alike is None else _InsertAlike(alike)


def together(jobs: Sequence[NewJob]) -> AlikeJobs | None:
    """Give jobs as alike if they are and one statement may insert them all; compared column by column, they cost less."""
    if not isinstance(jobs, AlikeJobs):
        queues, payloads, *rest = zip(*jobs, strict=True)
        if not all(column.count(column[0]) == len(jobs) for column in (queues, *rest)):
            return None
        jobs = AlikeJobs(jobs[0], payloads)
    return jobs if fits(jobs.payloads) else None


def find(queue: str, where: JobFilter) -> Steps[list[JobRecord]]:
    if where.limit <= 0:
        return []
    if where.ids is not None:
        return (yield from _find_by_ids(queue, where))
    rows = yield Statement(FIND[where.state], (queue, where.after, where.error, where.limit))
    return [_record(row) for row in rows]


def count(queue: str, now: int) -> Steps[JobCounts]:
    rows = yield Statement(_SQL["count"], (queue, now))
    ready, delayed, processing, stale, dead, oldest = rows[0]
    age = None if oldest is None else now - oldest
    return JobCounts(ready, delayed, processing, stale, dead, age)


def claim(queue: str, worker_ids: Sequence[str], now: int) -> Steps[Change[Claimed | None]]:
    """Take jobs; None if there is so much to put in its place first that it takes another commit."""
    if not worker_ids:
        return Change(Claimed((), None))
    answer = yield make_statement(Statement, (IS_STIRRED, (queue, now), False, ROWS))
    if answer[0][0] and not (yield from _tidy(queue, now)):
        return Change(None)
    wanted = len(worker_ids)
    rows = yield make_statement(Statement, (FIRST, (queue, now, wanted), False, ROWS))
    next_at = None
    if len(rows) < wanted:
        rows, next_at = yield from _first_of_levels(queue, wanted, now)
    jobs: list[JobRecord] = []
    reclaimed = 0
    if rows:
        reclaimed = len(rows) - [row[13] for row in rows].count(None)  # a deadline: of a claim that lapsed
        held = _held(rows, worker_ids, now, jobs)
        if len(held) == 1:
            yield make_statement(Statement, (HOLD, held[0], False, COUNT))
        else:
            yield Statement(HOLD, held, True)
    if len(jobs) < wanted:
        # Asked after the claim: what it took lapses too.
        lapses = yield Statement(_SQL["next_lapse"], (queue,))
        next_at = min((at for at in (next_at, *(at for (at,) in lapses)) if at is not None), default=None)
    return make_change(Change, (_new_claimed(Claimed, (jobs, next_at, reclaimed)), ()))


def settle(settles: Sequence[Settle], now: int) -> Steps[Change[Sequence[int | None]]]:
    return (yield from settling(settles)(now))


def settling(settles: Sequence[Settle]) -> Operation[Sequence[int | None]]:
    """Give what settles each that it can, a `Single` if it is the ack of one job."""
    if len(settles) == 1 and type(ack := settles[0]) is Ack and MIN_INT64 <= ack.id <= MAX_INT64:
        return _Ack(ack)
    return partial(_settle_all, settles)


def sweep(queue: str, now: int) -> Steps[Change[int]]:
    expired = yield Statement(_SQL["bury_expired"], (queue, now, EXPIRED), tells=COUNT)
    lapsed = yield Statement(_SQL["bury_lapsed"], (queue, now, LAPSED, -1), tells=COUNT)
    return Change(expired[0][0] + lapsed[0][0])


def purge(queue: str, older_than: int, now: int) -> Steps[Change[int]]:
    before = None if older_than <= 0 else shift(now, -older_than)
    answer = yield Statement(_SQL["purge"], (queue, before), tells=COUNT)
    return Change(answer[0][0])


def names() -> Steps[list[str]]:
    return sorted(name for (name,) in (yield Statement(_SQL["names"])))


# ---------------------------------------------------------------- claims


def _tidy(queue: str, now: int) -> Steps[bool]:
    """Put rows that time has moved in their place; True once that is all of them."""
    is_done = True
    for name in ("put_in_line", "set_aside", "take_up", "hold_again"):
        answer = yield Statement(_SQL[name], (queue, now, TIDIED_BY_A_CLAIM), tells=COUNT)
        is_done = is_done and answer[0][0] < TIDIED_BY_A_CLAIM
    if is_done:  # with the last portion: a claim buries so many, however many portions it takes
        yield Statement(_SQL["bury_lapsed"], (queue, now, LAPSED, BURIED_BY_A_CLAIM))
    return is_done


def _first_of_levels(queue: str, wanted: int, now: int) -> Steps[tuple[list[Row], int | None]]:
    """Read the first rows in line, level by level of priority, and when the first one after them is ready."""
    rows: list[Row] = []
    instants: list[int] = []
    levels = yield Statement(_SQL["highest_level"], (queue,))
    while levels and len(rows) < wanted:
        priority, run_at = levels[0]
        if run_at <= now:
            rows += yield Statement(_SQL["first_of_level"], (queue, now, wanted - len(rows), priority))
            later = yield Statement(_SQL["next_of_level"], (queue, priority, now))
            instants += [at for (at,) in later]
        else:
            instants.append(run_at)
        levels = yield Statement(_SQL["next_level"], (queue, priority))
    return rows, min(instants, default=None)


def _held(rows: Sequence[Row], worker_ids: Sequence[str], now: int, jobs: list[JobRecord]) -> list[Row]:
    """Give what is to be written of claimed rows; their records as claimed go to ``jobs``."""
    held: list[Row] = []
    known, deadline = -1, 0
    for (
        id, queue, payload, headers, _, priority, run_at, expires_at, before, most, window, base, _, _,
        created_at, boundary, retry_error, last_error, died_at, _,
    ), worker_id in zip(rows, worker_ids, strict=False):  # fmt: skip
        attempts, token = before + 1, _tokens.getrandbits(63)
        if window != known:  # mostly the same for all
            known, deadline = window, shift(now, window)
        jobs.append(_new_record(JobRecord, (
            id, queue, payload, headers, PROCESSING, priority, run_at, expires_at, attempts, most, window, base,
            worker_id, deadline, created_at, boundary, retry_error, last_error, died_at, token,
        )))  # fmt: skip
        held.append((id, LAST if attempts >= most else HELD, worker_id, deadline, token))
    return held


# ---------------------------------------------------------------- rows


def _new_row(job: NewJob, now: int, scheduled_for: int | None = None) -> tuple[object, ...]:
    queue, payload, headers, priority, delay, run_at, window, most, base, expires = job
    if delay is not None:
        run_at = shift(now, delay)
    elif run_at is None:
        run_at = now
    expires_at = None if expires is None else shift(now, expires)
    return queue, payload, headers, priority, run_at, expires_at, most, window, base, now, scheduled_for


class _Insert(Single[Sequence[int]]):
    __slots__ = ("_job",)
    sql, tells = INSERT, ID

    def __init__(self, job: NewJob) -> None:
        self._job = job

    def parameters(self, now: int) -> Row:
        return _new_row(self._job, now)

    def conclude(self, answer: int, now: int) -> Change[Sequence[int]]:
        return make_change(Change, ((answer,), (_wake(self._job.queue),)))


class _InsertAlike(Single[Sequence[int]]):
    __slots__ = ("_jobs", "_packed")
    sql, tells = INSERT_ALIKE, ID

    def __init__(self, jobs: AlikeJobs) -> None:
        self._jobs = jobs
        self._packed = pack(jobs.payloads)

    def parameters(self, now: int) -> Row:
        (queue, _, *common), (payloads, places) = _new_row(self._jobs.pattern, now), self._packed
        return queue, payloads, *common, places

    def conclude(self, answer: int, now: int) -> Change[Sequence[int]]:
        ids = range(answer - len(self._jobs) + 1, answer + 1)  # nobody else draws ids under our write lock
        return make_change(Change, (ids, (_wake(self._jobs.pattern.queue),)))


def _insert_kinds(
    jobs: Sequence[NewJob], scheduled_for: Sequence[int | None], now: int
) -> Steps[Change[Sequence[int]]]:
    if not jobs:
        return Change(())
    boundaries = scheduled_for or (None,) * len(jobs)
    ((first,),) = yield Statement(INSERT, _new_row(jobs[0], now, boundaries[0]), tells=ID)
    ids = range(first, first + len(jobs))
    kinds: dict[tuple[object, ...], list[int]] = {}
    for at, (job, boundary) in enumerate(zip(jobs, boundaries, strict=True)):
        kinds.setdefault((job[0], job[2:], boundary), []).append(at)
    for places in kinds.values():
        queue, _, *common = _new_row(jobs[places[0]], now, boundaries[places[0]])
        for portion in portions((ids[at], jobs[at].payload) for at in places if at):
            payloads, found = pack_by_id(portion)
            yield Statement(INSERT_NEXT, (queue, payloads, *common, found))
    return Change(ids, _woken([job.queue for job in jobs]))


def _record(row: Row) -> JobRecord:
    return _new_record(JobRecord, (*row[:4], STATES[row[4]], *row[5:]))


def _find_by_ids(queue: str, where: JobFilter) -> Steps[list[JobRecord]]:
    found: list[JobRecord] = []
    for id in sorted({id for id in where.ids or () if MIN_INT64 <= id <= MAX_INT64}):
        rows = yield Statement(_SQL["find_by_id"], (queue, id))
        found += [job for job in map(_record, rows) if _is_among(job, where)]
        if len(found) == where.limit:
            break
    return found


def _is_among(job: JobRecord, where: JobFilter) -> bool:
    if where.state is not None and job.state is not where.state:
        return False
    return where.error is None or any(
        where.error in text for text in (job.last_error, job.retry_error) if text
    )


# ---------------------------------------------------------------- settles


class _Ack(Single[Sequence[int | None]]):
    __slots__ = ("_ack",)
    sql, tells = ACK, COUNT

    def __init__(self, ack: Ack) -> None:
        self._ack = ack

    def parameters(self, now: int) -> Row:
        queue, id, token = self._ack
        return id, token, now, queue

    def conclude(self, answer: int, now: int) -> Change[Sequence[int | None]]:
        return make_change(Change, ([now if answer else None], ()))


def _settle_all(settles: Sequence[Settle], now: int) -> Steps[Change[Sequence[int | None]]]:
    if len(settles) > 1 and set(map(type, settles)) == {Ack}:
        return Change((yield from _ack_all(settles, now)))
    instants: list[int | None] = []
    stirred: list[str] = []
    for each in settles:
        at = yield from _apply(each, now)
        instants.append(at)
        if at is not None and not isinstance(each, (Ack, Fail, Cancel)):
            stirred.append(each.queue)
    return Change(instants, _woken(stirred))


def _ack_all(acks: Sequence[Any], now: int) -> Steps[list[int | None]]:
    """Ack by one statement's many rows: a third of what a statement for each would cost."""
    rows = [(id, token, now, queue) for queue, id, token in acks]
    answer = yield Statement(ACK, rows, True, EACH)
    return [now if count else None for count in answer[0]]


def _apply(settle: Settle, now: int) -> Steps[int | None]:
    if not MIN_INT64 <= settle.id <= MAX_INT64:  # no row can have it, and the driver would refuse it
        return None
    at = now
    parameters: tuple[object, ...]
    if isinstance(settle, Cancel):
        sql, parameters = _SQL["cancel"], (settle.id, settle.queue)
    elif isinstance(settle, Redrive):
        sql, parameters = _SQL["redrive"], (settle.id, settle.queue, now)
    else:
        more: tuple[object, ...] = ()
        if isinstance(settle, Heartbeat):
            at = shift(now, settle.window)
            more = (at,)
        elif isinstance(settle, Retry):
            more = (shift(now, settle.delay), settle.error)
        elif isinstance(settle, Fail):
            more = (settle.error,)
        sql, parameters = SETTLE[type(settle)], (settle.id, settle.token, now, settle.queue, *more)
    answer = yield Statement(sql, parameters, False, COUNT)
    return at if answer[0][0] else None


@lru_cache(maxsize=256)
def _wake(queue: str) -> Woken:
    return Woken(Topic(QUEUE, queue))


def _woken(queues: Iterable[str]) -> Sequence[Woken]:
    return [_wake(queue) for queue in dict.fromkeys(queues)]
