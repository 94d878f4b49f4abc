"""The curve of retries: exponential with equal jitter."""

import random as random_module
from typing import Final

__all__ = ["CEILING", "delay"]

CEILING: Final = 3_600_000_000
"""Where the curve of a shorter base levels off: one hour, in microseconds."""

_STEEPEST: Final = 64
"""Doublings after which one microsecond is past every 64-bit ceiling; more would only build giant integers."""


def delay(attempts: int, base_delay: int, random: random_module.Random) -> int:
    """Give the wait before the next attempt in microseconds.

    c = min(base_delay * 2^(attempts - 1), max(base_delay, 1 h)); the wait is c/2 + uniform(0, c/2).

    Args:
        attempts: Claims so far, from 1.
        base_delay: Microseconds; 0 gives 0.
        random: Where the jitter comes from.

    Rows: Q-12. Source: equal jitter as in "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
    """
    doublings = min(max(attempts - 1, 0), _STEEPEST)
    ceiling = min(base_delay << doublings, max(base_delay, CEILING))
    jitter = ceiling // 2
    return ceiling - jitter + random.randint(0, jitter)
