"""alkstore on Redis: an example of an engine, complete and small."""

from alkstore_redis.engine import RedisStore

__all__ = ["RedisStore"]
