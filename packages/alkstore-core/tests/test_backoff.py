import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alkstore import backoff
from alkstore.backoff import CEILING
from alkstore.numbers import MAX_INT64
from alkstore.testing import seeded

SECOND = 1_000_000


class Extreme(random.Random):
    """Draws one end of every range."""

    def __init__(self, *, highest: bool) -> None:
        super().__init__(0)
        self._highest = highest

    def randint(self, a: int, b: int) -> int:
        return b if self._highest else a


@pytest.mark.parametrize(
    ("attempts", "base_delay", "ceiling"),
    [
        (1, 5 * SECOND, 5 * SECOND),
        (2, 5 * SECOND, 10 * SECOND),
        (5, 5 * SECOND, 80 * SECOND),
        (10, 5 * SECOND, 2_560 * SECOND),
        (11, 5 * SECOND, CEILING),
        (1_000, 5 * SECOND, CEILING),
        (MAX_INT64, 1, CEILING),
        (1, 7_200 * SECOND, 7_200 * SECOND),
        (9, 7_200 * SECOND, 7_200 * SECOND),
        (9, MAX_INT64, MAX_INT64),
        (1, 1, 1),
        (3, 0, 0),
        (MAX_INT64, 0, 0),
    ],
)
def test_the_wait_is_between_half_of_the_curve_and_all_of_it(
    attempts: int, base_delay: int, ceiling: int
) -> None:
    assert backoff.delay(attempts, base_delay, Extreme(highest=False)) == ceiling - ceiling // 2
    assert backoff.delay(attempts, base_delay, Extreme(highest=True)) == ceiling


@given(st.integers(1, MAX_INT64), st.integers(0, MAX_INT64), st.integers())
def test_every_wait_is_within_the_curve(attempts: int, base_delay: int, seed: int) -> None:
    ceiling = min(base_delay * 2 ** min(attempts - 1, 100), max(base_delay, CEILING))

    assert ceiling / 2 <= backoff.delay(attempts, base_delay, seeded(seed)) <= ceiling


def test_the_jitter_spreads_evenly() -> None:
    draws = seeded()

    waits = [backoff.delay(1, 10 * SECOND, draws) for _ in range(4_000)]

    quarters = statistics.quantiles(waits, n=4)
    assert quarters == pytest.approx([6.25 * SECOND, 7.5 * SECOND, 8.75 * SECOND], rel=0.03)


def test_one_seed_gives_one_curve() -> None:
    assert backoff.delay(3, 5 * SECOND, seeded(7)) == backoff.delay(3, 5 * SECOND, seeded(7))
