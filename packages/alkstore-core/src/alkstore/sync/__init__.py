"""alkstore for plain threads: scripts, Flask, Django. The same surface, by ``with`` and plain calls.

    store = alkstore.sync.open("sqlite:///app.db")
    store.queue("mail").enqueue({"to": "ada@example.org"})

It does nothing by itself: every call runs the async one, in an event loop that has a thread of its own.
"""

from alkstore.sync.lock import Lock
from alkstore.sync.queue import JobHandle, Outbox, Queue
from alkstore.sync.store import Store, open
from alkstore.sync.stream import EventReceiver, Stream, WakeReceiver
from alkstore.sync.tx import Tx

__all__ = [
    "EventReceiver",
    "JobHandle",
    "Lock",
    "Outbox",
    "Queue",
    "Store",
    "Stream",
    "Tx",
    "WakeReceiver",
    "open",
]

for _public in (EventReceiver, JobHandle, Lock, Outbox, Queue, Store, Stream, Tx, WakeReceiver):
    _public.__module__ = __name__  # what users import, in tracebacks and in the docs
del _public
