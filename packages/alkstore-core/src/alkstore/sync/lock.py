"""Named locks for plain threads."""

from typing import Any

from alkstore import lock
from alkstore.sync.proxy import Call, Context, Proxy

__all__ = ["Lock"]


class Lock(Proxy[lock.Lock]):
    """A named lock that is held, as `alkstore.Lock`; ``with lock:`` releases it."""

    __slots__ = ("_block",)

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def fence(self) -> int:
        """Greater than every earlier holder's: what storage compares to refuse a holder that was late."""
        return self._target.fence

    @property
    def held(self) -> bool:
        """Whether this process believes that it holds it; local knowledge."""
        return self._target.held

    renew = Call(lock.Lock.renew)
    release = Call(lock.Lock.release)

    def __enter__(self) -> "Lock":
        self._block = Context(self._portal, lambda: self._target, lambda _, nothing: None)
        self._block.__enter__()
        return self

    def __exit__(self, *error: Any) -> bool:
        return self._block.__exit__(*error)
