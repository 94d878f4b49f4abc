"""What tests of applications on plain threads need."""

from alkstore import testing
from alkstore.errors import InvalidArgument, show
from alkstore.sync.queue import Queue
from alkstore.values import Job

__all__ = ["assert_enqueued"]


def assert_enqueued(queue: Queue, payload: object = testing.ANY) -> Job:
    """Make sure that a job waits in a queue, and give it; as `alkstore.testing.assert_enqueued`."""
    if not isinstance(queue, Queue):
        raise InvalidArgument(
            f"queue must be an alkstore.sync.Queue, as store.queue(name) gives it, got {show(queue)}"
        )
    return queue._call(lambda target, _: testing.assert_enqueued(target, payload))
