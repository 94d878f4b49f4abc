"""alkstore in memory: the whole contract in one event loop, gone when the store is closed."""

from alkstore_mem.engine import MemStore

__all__ = ["MemStore"]
