"""Durable work with one meaning: queues, streams, wakes, named locks, schedules, an outbox and transactions."""

from alkstore.engine import JobState
from alkstore.errors import (
    AlkstoreError,
    ClaimLost,
    Closed,
    CodecError,
    DatabaseError,
    HandleConsumed,
    InsideTransaction,
    InvalidArgument,
    InvalidName,
    InvalidSpec,
    LeadershipLost,
    LockLost,
    LockTimeout,
    OffsetConflict,
    PayloadTooLarge,
    ReservedName,
    SchemaMismatch,
)
from alkstore.job import JobHandle
from alkstore.lock import Lock
from alkstore.opening import open  # the surface's name, as in gzip.open
from alkstore.outbox import Outbox
from alkstore.queue import Queue
from alkstore.stop import StopToken
from alkstore.store import Store
from alkstore.stream import EventReceiver, Stream
from alkstore.transaction import Tx, outside_tx
from alkstore.values import (
    EnqueueOpts,
    Job,
    LockInfo,
    QueueStats,
    Schedule,
    ScheduleOpts,
    StreamEvent,
    Wake,
)
from alkstore.version import CONTRACT_VERSION, __version__
from alkstore.wake import WakeReceiver

__all__ = [
    "CONTRACT_VERSION",
    "AlkstoreError",
    "ClaimLost",
    "Closed",
    "CodecError",
    "DatabaseError",
    "EnqueueOpts",
    "EventReceiver",
    "HandleConsumed",
    "InsideTransaction",
    "InvalidArgument",
    "InvalidName",
    "InvalidSpec",
    "Job",
    "JobHandle",
    "JobState",
    "LeadershipLost",
    "Lock",
    "LockInfo",
    "LockLost",
    "LockTimeout",
    "OffsetConflict",
    "Outbox",
    "PayloadTooLarge",
    "Queue",
    "QueueStats",
    "ReservedName",
    "Schedule",
    "ScheduleOpts",
    "SchemaMismatch",
    "StopToken",
    "Store",
    "Stream",
    "StreamEvent",
    "Tx",
    "Wake",
    "WakeReceiver",
    "__version__",
    "open",
    "outside_tx",
]


def _show_public_address() -> None:
    """Tracebacks, repr and docs name what users import, not the module that defines it."""
    for name in __all__:
        value = globals()[name]
        if isinstance(value, type) and value.__module__.startswith("alkstore."):
            value.__module__ = "alkstore"


_show_public_address()
