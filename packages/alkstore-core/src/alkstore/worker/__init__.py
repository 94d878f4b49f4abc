"""The worker: claims jobs, runs handlers, renews, gives the outcomes, and stops without losing anything.

from alkstore.worker import Worker

worker = Worker(store, {"emails": send_email})
await worker.run()
"""

from alkstore.worker.handler import Handler, by_kind, handle
from alkstore.worker.outcome import Counts, Fail, Retry
from alkstore.worker.worker import Worker

__all__ = ["Counts", "Fail", "Handler", "Retry", "Worker", "by_kind", "handle"]

for _public in (Counts, Fail, Handler, Retry, Worker):
    _public.__module__ = __name__  # what users import, in tracebacks and in the docs
del _public
