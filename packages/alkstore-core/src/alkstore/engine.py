"""The seam: what an engine supplies. Core decides, an engine does I/O.

State model. A *job* is pending, processing (a claim: token, worker id, deadline) or dead; an acked one is gone. A
*stream* is an append-only log with one position a consumer. A *lease* is a named lock with a fence that grows by every
acquisition. A *schedule* is a rule with its next boundary. Every method is atomic, takes a batch and commits by itself;
those of `EngineTransaction` land together at its commit. After a commit, and only then, the engine wakes the topics
that the commit touched (`Hub` does it for engines that share a process).

Units: an instant is an ``int`` of microseconds since 1970-01-01T00:00:00Z, a duration an ``int`` of microseconds. Every
instant that an engine computes goes through `numbers.shift`, so it stays within the calendar. *Now* is the engine's
one clock. Names, numbers and payloads have been checked by core before they get here.

Errors: an engine raises `DatabaseError` with the driver's exception as its cause, `Closed` after `aclose`, and what a
method names; nothing else. A method that raised before its commit leaves nothing behind.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from alkstore.records import (
    Ack,
    Cancel,
    Claimed,
    EventRecord,
    EventRow,
    Fail,
    Fired,
    Heartbeat,
    JobCounts,
    JobFilter,
    JobRecord,
    JobState,
    LockRecord,
    Names,
    NewEvent,
    NewJob,
    NewSchedule,
    NewWake,
    OffsetSave,
    Redrive,
    Release,
    Retry,
    ScheduleRecord,
    Settle,
    Signal,
    Taken,
    Topic,
    TopicKind,
)
from alkstore.sequence import AlikeEvents, AlikeJobs, EventRows

__all__ = [
    "Ack",
    "AlikeEvents",
    "AlikeJobs",
    "Cancel",
    "Claimed",
    "Engine",
    "EngineTransaction",
    "EventRecord",
    "EventRow",
    "EventRows",
    "Fail",
    "Fired",
    "Heartbeat",
    "JobCounts",
    "JobFilter",
    "JobRecord",
    "JobState",
    "ListenerReporting",
    "LockEngine",
    "LockRecord",
    "Names",
    "NewEvent",
    "NewJob",
    "NewSchedule",
    "NewWake",
    "OffsetSave",
    "QueueEngine",
    "Redrive",
    "Release",
    "Retry",
    "ScheduleEngine",
    "ScheduleRecord",
    "Settle",
    "Signal",
    "StreamEngine",
    "Taken",
    "Topic",
    "TopicKind",
    "Traits",
    "TransactionEngine",
    "WakeEngine",
    "Watch",
]


class Watch(Protocol):
    """Hears of one topic from the moment it was given, and forgets nothing until it is closed.

    Wakes fold into a bounded memory (a counter, or a flag). One task waits at a time; a cancelled wait loses nothing.
    """

    def poll(self) -> Signal | None:
        """Take what is pending now: WOKEN, RECONNECTED or CLOSED, or None. Never DUE.

        Raises:
            DatabaseError: The engine can no longer hear of anything, and why.
        """

    async def wait(self, until: int | None = None) -> Signal:
        """Wait for a wake, or until now >= ``until`` (DUE); CLOSED at once and for ever when closed.

        Raises:
            DatabaseError: The engine can no longer hear of anything, and why.
        """

    def close(self) -> None:
        """Stop hearing; ends a wait with CLOSED. From any state, any number of times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What core must know of an engine to use it well; consumers never see it.

    Attributes:
        batches: A call costs I/O, so core merges what is awaited at the same time, and claims in a task of its own.
        gives_back: A `claim_jobs`, `take_lock`, `begin` or `watch` that is cancelled gives back by itself what it took, so
            it may be called in its caller's task.
        begins_whole: The same of a `begin` alone.
        reads_apart: A read is a server's work, so a page may be read while the application works on the one before.
        notify_limit: Greatest encoded size of a notify payload in bytes; None for no limit.
        outside_tx: A write beside an open transaction can land before that transaction ends.
        durable: Storage outlives the process.
        tells_reclaims: `Claimed.reclaimed` is filled in; else observers are told what the jobs themselves suggest.
    """

    batches: bool = False
    gives_back: bool = False
    begins_whole: bool = False
    reads_apart: bool = False
    notify_limit: int | None = None
    outside_tx: bool = True
    durable: bool = False
    tells_reclaims: bool = False


class QueueEngine(Protocol):
    """Jobs."""

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        """Insert all or nothing; wakes each queue once. Gives ids in the order of ``jobs``, increasing, never reused.

        ``jobs`` may be `AlikeJobs`.

        Cost: one round trip. Rows: Q-01, Q-04, Q-22.
        """

    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        """Read at most ``where.limit`` rows in id order. Never writes, never waits for a writer."""

    async def count_jobs(self, queue: str) -> JobCounts:
        """Count the rows of one queue. Never writes. Rows: Q-20."""

    async def claim_jobs(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        """Take up to one job for each worker id, in claim order: priority high to low, run_at, id.

        Claimable: PENDING with now >= run_at, or PROCESSING with now >= deadline and attempts left; in both cases
        not expired. Sets PROCESSING, worker_id, deadline = now + the row's stamp, attempts + 1 and a new token. Moves
        at most 1,000 lapsed rows without attempts left to DEAD on the way ("visibility timeout lapsed on the last
        attempt") and never comes back short because of them or of expired ones. A row that an open transaction acked
        is passed over. What a cancelled call took lapses, or is released (`Traits.gives_back`). Cost: one round trip,
        O(log n). Rows: Q-05 to Q-08, Q-16.
        """

    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        """Apply each by itself, all in one commit; wakes each queue in which a row became claimable, now or later.

        Ack, Retry, Fail, Release and Heartbeat land only while the row is PROCESSING with this token and
        now < deadline. Gives for each the instant it took effect (a heartbeat's: the new deadline), or None where it
        did not land. Cost: one round trip. Rows: Q-09 to Q-19, Q-27.
        """

    async def sweep_jobs(self, queue: str) -> int:
        """Move to DEAD what qualified when the sweep began: expired rows that nobody holds ("expired"), lapsed rows
        without attempts left. Gives how many this call moved. Rows: Q-17.
        """

    async def purge_jobs(self, queue: str, older_than: int) -> int:
        """Delete dead rows with died_at < now - ``older_than`` (all of them if that is <= 0); gives how many."""


class StreamEngine(Protocol):
    """Events and consumers' positions."""

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        """Append all or nothing; wakes each stream once. Gives offsets in the order of ``events``.

        ``events`` may be `AlikeEvents`. Rows: STR-01, STR-14.
        """

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        """Read at most ``limit`` (>= 1) events with offset > ``after``, ascending, below every offset that an open
        transaction may still fill. `EventRows` will do. Never waits for a writer. Rows: STR-03, STR-04.
        """

    async def read_head(self, stream: str) -> int:
        """Give the greatest offset that a reader may see now: 0 if there never was one, unchanged by trims."""

    async def trim_events(self, stream: str, horizon: int) -> int:
        """Delete readable events with offset <= ``horizon``; gives how many. Wakes nothing. Rows: STR-11."""

    async def read_offsets(self, stream: str, consumer: str | None = None) -> Mapping[str, int]:
        """Give the saved position of one consumer, or of all; who never saved is absent."""

    async def move_offset(self, stream: str, consumer: str, offset: int, *, backwards: bool) -> bool:
        """Save a position: any value if ``backwards``, else only a greater one. True if it moved. Rows: STR-06."""


class WakeEngine(Protocol):
    """Wakes."""

    async def notify(self, wakes: Sequence[NewWake]) -> None:
        """Commit a wake for each channel. Rows: WAKE-01 to WAKE-04."""

    async def watch(self, topic: Topic) -> Watch:
        """Hear of a topic: every commit after this returned, none that was acknowledged before. Rows: WAKE-02."""


class LockEngine(Protocol):
    """Leases."""

    async def take_lock(self, name: str, ttl: int) -> Taken:
        """Take a free or lapsed lock until now + ``ttl``, with a fence above every earlier one of this name."""

    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        """Move the end of a live lease to now + ``ttl``; ``ttl`` 0 frees it. An end that comes sooner wakes the topic.

        Gives the new end, or None if this fence is not live: then nothing changed. Rows: LOCK-02 to LOCK-04.
        """

    async def list_locks(self) -> Sequence[LockRecord]:
        """Give the locks held now, sorted by name."""


class ScheduleEngine(Protocol):
    """Schedules."""

    async def put_schedule(self, schedule: NewSchedule) -> ScheduleRecord:
        """Write by name, whole. Same interval and anchor keep next_fire_at; else `interval.first_boundary` sets it.

        Wakes the SCHEDULE topic. Rows: SCHED-01, SCHED-03.
        """

    async def delete_schedule(self, name: str) -> bool:
        """Delete by name; wakes the SCHEDULE topic. True if it was there."""

    async def fire_schedules(self, lease: tuple[str, int] | None) -> Fired:
        """Fire what is due, each schedule's fires and advance in one atomic step with the check of the lease.

        ``lease`` is the runner's lock name and fence, None for a single pass. `interval.due_boundaries` says which
        boundaries and what comes next. One that cannot be fired stays as it is and is logged; it holds back no other, and
        ``next_at`` leaves it out. Wakes the queues. Rows: SCHED-04 to SCHED-07, SCHED-10, SCHED-15.
        """

    async def list_schedules(self) -> Sequence[ScheduleRecord]:
        """Give all, sorted by name."""


class EngineTransaction(Protocol):
    """One open transaction: nothing of it is seen by anybody else before `commit`, and nothing wakes.

    Methods named as on `Engine` do the same within the transaction, and see its own writes. Any of them raises
    `Closed` once the transaction ended, `DatabaseError` if it waited too long or was chosen to break a deadlock (the
    transaction is then rolled back).
    """

    @property
    def is_open(self) -> bool:
        """Whether operations still ride this transaction."""

    @property
    def connection(self) -> object:
        """The driver's connection, for the caller's own SQL.

        Raises:
            InvalidArgument: The engine has none.
        """

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]: ...

    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]: ...

    async def settle_jobs(self, settles: Sequence[Ack]) -> Sequence[int | None]:
        """Hold each live claim's row so that no claim, sweep or settle touches it, and delete it at commit."""

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]: ...

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        """As on `Engine`, with own events, up to the first offset that another open transaction may still fill."""

    async def read_offset(self, stream: str, consumer: str, *, hold: bool) -> int:
        """Give the position; with ``hold`` no other transaction moves or holds it until this one ends."""

    async def save_offset(self, stream: str, consumer: str, offset: int, expected: int | None) -> OffsetSave:
        """Hold the position, and save if it is ``expected`` (None: if ``offset`` is greater)."""

    async def notify(self, wakes: Sequence[NewWake]) -> None: ...

    async def commit(self) -> None:
        """Land all of it in one step, then wake what it touched.

        Raises:
            DatabaseError: Nothing landed, or (the cause says so) the outcome is unknown.
            OffsetConflict: A saved position was reset by somebody else since; nothing landed.
        """

    async def rollback(self) -> None:
        """Leave no trace; harmless on an ended transaction. The store's close calls it while another call may be inside:
        that one ends, with `Closed` or `DatabaseError`. Of what rides the caller's it ends no more than
        `TransactionEngine.begin` itself began: a store that was closed while it began calls it.
        """

    def abandon(self) -> None:
        """End without awaiting, perhaps from the garbage collector: nothing lands, everything held is freed. Harmless on
        one that has ended; called then too, since the caller's own SQL may have ended it. Of what rides the caller's it
        ends no more than `TransactionEngine.begin` itself began.
        """


class TransactionEngine(Protocol):
    """Transactions and life."""

    async def begin(self, connection: object | None = None, begun: str = "") -> EngineTransaction:
        """Begin a transaction, or ride the one that is open on the caller's ``connection`` (commit and rollback are
        then the caller's). A thread without an event loop hands in its own as `alkstore.plain.PlainConnection`. ``begun``
        says where in the caller's code: the errors of those who wait for it name that.

        To ride is awaited in the caller's task, whatever `Traits` say: cut short, it leaves the connection as it found
        it, and has nothing under way on it any more.

        Raises:
            InvalidArgument: ``connection`` cannot be joined, and why.
        """

    async def list_names(self) -> Names:
        """Give the names that have rows. Never writes."""

    async def aclose(self) -> None:
        """Finish what was handed over, roll open transactions back, end every watch with CLOSED, free everything.

        What is still inside when core calls this has used up its five seconds (DUR-06): a flush, a commit, a read. Such a
        call must not outlive this one: it ends with its answer, or with `DatabaseError` of unknown outcome.
        """


@runtime_checkable
class ListenerReporting(Protocol):
    """What an engine may have besides, if a connection of its own hears of other processes' commits."""

    def report_listener(self, report: Callable[[str | None], object]) -> None:
        """Call ``report`` from now on with None whenever that connection has come up, and with the reason when it is lost
        or cannot be had. It raises nothing. Asked once at most, right after opening.
        """


class Engine(QueueEngine, StreamEngine, WakeEngine, LockEngine, ScheduleEngine, TransactionEngine, Protocol):
    """Everything. Fulfil it by shape; nothing is inherited, so nothing works by accident."""

    @property
    def traits(self) -> Traits:
        """What core must know to use this engine well."""
