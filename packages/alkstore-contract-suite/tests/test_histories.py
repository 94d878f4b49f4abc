"""The checkers of histories: a history that can have been is let through, each other one is refused for its own reason."""

import pytest

from alkstore_contract_suite.histories import accounting, linear, objects, prefix
from alkstore_contract_suite.histories.call import UNKNOWN, Call, calls, noted

INFINITE = float("inf")


def put(keys: list[str], ids: list[int] | str, at: tuple[float, float] = (0, 1)) -> Call:
    return Call("a", "enqueue", keys, ids, *at)


def claim(jobs: list[tuple[int, str, int]], at: tuple[float, float] = (2, 3), by: str = "b") -> Call:
    return Call(by, "claim", None, jobs, *at)


def ack(id: int, landed: object = True, at: tuple[float, float] = (4, 5)) -> Call:
    return Call("b", "ack", (id, 1), landed, *at)


GOOD_QUEUE = [put(["x", "y"], [1, 2]), claim([(1, "x", 1), (2, "y", 1)]), ack(1), ack(2)]


async def test_a_call_is_noted_before_and_after() -> None:
    notes: list[tuple[object, ...]] = []

    async def answer() -> int:
        return 7

    await noted(notes.append, "take", "l", answer(), str)
    notes.append(("begins", "free", 7, 10**30))

    first, second = calls("p", notes)
    assert (first.process, first.do, first.given, first.answer, first.is_known) == (
        "p",
        "take",
        "l",
        "7",
        True,
    )
    assert first.begun <= first.ended
    assert (second.answer, second.ended, second.is_known) == (UNKNOWN, INFINITE, False)


# ---------------------------------------------------------------- accounts of queues


@pytest.mark.parametrize(
    ("history", "left"),
    [
        ([], []),
        (GOOD_QUEUE, []),
        (GOOD_QUEUE[:1], ["x", "y"]),
        ([put(["x"], UNKNOWN, (0, INFINITE))], []),
        ([put(["x"], UNKNOWN, (0, INFINITE)), claim([(1, "x", 1)]), ack(1, UNKNOWN, (4, INFINITE))], []),
        ([put(["x"], [1]), claim([(1, "x", 1)]), Call("t", "lapse", None, None, 4, 5), claim([(1, "x", 2)], (6, 7))], ["x"]),
        ([put(["x"], [1]), claim([(1, "x", 1)]), Call("b", "release", (1, 1), True, 4, 5), claim([(1, "x", 1)], (6, 7)), ack(1, True, (8, 9))], []),
        ([put(["x"], [1]), claim([(1, "x", 1)]), ack(1, True, (4, 9)), claim([], (6, 7))], []),
    ],
)  # fmt: skip
def test_accounts_that_add_up_are_let_through(history: list[Call], left: list[str]) -> None:
    assert accounting.faults(history, left) == []


@pytest.mark.parametrize(
    ("history", "left", "fault"),
    [
        ([put(["x"], [1])], [], "job 'x' was acknowledged and never given out"),
        ([put(["x"], [1]), claim([(1, "x", 1), (9, "z", 1)]), ack(1)], [], "job 'z' was never enqueued"),
        ([], ["z"], "job 'z' was never enqueued"),
        (
            [put(["x"], UNKNOWN, (0, INFINITE)), claim([(1, "x", 1), (2, "x", 1)]), ack(1), ack(2)],
            [],
            "job 'x' was enqueued once and stored twice",
        ),
        ([put(["x"], [1])], ["x", "x"], "job 'x' was enqueued once and stored twice"),
        ([put(["x", "y"], UNKNOWN, (0, INFINITE))], ["x"], "of the batch ['x', 'y'] a part was stored"),
        (
            [put(["x"], [1]), claim([(1, "x", 1)]), claim([(1, "x", 1)], (2, 4), "c"), ack(1, True, (8, 9))],
            [],
            "job 1 was given to c while b held it",
        ),
        (
            [put(["x"], [1]), claim([(1, "x", 1)]), claim([(1, "x", 2)], (6, 7), "c"), ack(1, True, (8, 9))],
            [],
            "job 1 was given to c while b held it",
        ),
        (
            [put(["x"], [1]), claim([(1, "x", 1)]), ack(1), ack(1, True, (6, 7))],
            [],
            "job 1 was acked 2 times",
        ),
        (
            [
                put(["x"], [1]),
                claim([(1, "x", 1)]),
                ack(1),
                Call("t", "lapse", None, None, 6, 7),
                claim([(1, "x", 2)], (8, 9)),
            ],
            [],
            "job 'x' was given out after its ack",
        ),
        ([put(["x"], [1]), claim([(1, "x", 1)]), ack(1)], ["x"], "job 'x' was there after its ack"),
    ],
)
def test_accounts_that_do_not_add_up_say_why(history: list[Call], left: list[str], fault: str) -> None:
    assert accounting.faults(history, left) == [fault]


# ---------------------------------------------------------------- prefixes of streams


def publish(keys: list[str], offsets: list[int] | str, at: tuple[float, float] = (0, 1)) -> Call:
    return Call("a", "publish", keys, offsets, *at)


LOG = [(1, "x"), (3, "y")]
PUBLISHED = [publish(["x"], [1]), publish(["y"], [3], (2, 3))]


@pytest.mark.parametrize(
    ("history", "readers", "log"),
    [
        ([], {}, []),
        (PUBLISHED, {"r": LOG, "s": LOG[:1], "t": []}, LOG),
        ([publish(["x"], [3]), publish(["y"], [1], (0.5, 2))], {}, [(1, "y"), (3, "x")]),
        ([publish(["x", "y"], UNKNOWN, (0, INFINITE))], {}, []),
        ([publish(["x", "y"], UNKNOWN, (0, INFINITE))], {}, LOG),
    ],
)
def test_prefixes_of_one_order_are_let_through(
    history: list[Call], readers: dict[str, list[tuple[int, str]]], log: list[tuple[int, str]]
) -> None:
    assert prefix.faults(history, readers, log) == []


@pytest.mark.parametrize(
    ("history", "readers", "log", "fault"),
    [
        (PUBLISHED, {"r": [(3, "y")]}, LOG, "r saw (3, 'y') where the stream has (1, 'x')"),
        (PUBLISHED, {"r": [*LOG, (4, "z")]}, LOG, "r saw (4, 'z') where the stream has None"),
        (PUBLISHED, {"r": [(1, "x"), (1, "x")]}, LOG, "r saw (1, 'x') where the stream has (3, 'y')"),
        (PUBLISHED[:1], {}, LOG, "event 'y' was never published"),
        (PUBLISHED, {}, LOG[:1], "event 'y' was acknowledged at 3 and stands at None"),
        (
            [publish(["x", "y"], UNKNOWN, (0, INFINITE))],
            {},
            LOG[:1],
            "of the batch ['x', 'y'] a part was published",
        ),
        (
            [publish(["x"], [3]), publish(["y"], [1], (2, 3))],
            {},
            [(1, "y"), (3, "x")],
            "['y'] was published after ['x'], and stands before it",
        ),
    ],
)
def test_what_is_no_prefix_of_one_order_says_why(
    history: list[Call], readers: dict[str, list[tuple[int, str]]], log: list[tuple[int, str]], fault: str
) -> None:
    assert prefix.faults(history, readers, log) == [fault]


def test_an_event_that_is_there_twice_is_found() -> None:
    assert "event 'x' is there 2 times" in prefix.faults([publish(["x"], [2])], {}, [(1, "x"), (2, "x")])


def test_a_log_out_of_order_is_found() -> None:
    history = [publish(["y", "x"], [3, 1])]
    assert prefix.faults(history, {}, [(3, "y"), (1, "x")]) == ["event 'x' stands at 1, after one at 3"]


# ---------------------------------------------------------------- one at a time


def lock(do: str, answer: object, at: tuple[float, float], given: object = None, by: str = "a") -> Call:
    return Call(by, do, given, answer, *at)


@pytest.mark.parametrize(
    "history",
    [
        [],
        [lock("take", 1, (0, 1)), lock("take", None, (2, 3), by="b"), lock("free", True, (4, 5), 1), lock("take", 2, (6, 7))],
        # The second was answered first, and can have come second all the same.
        [lock("take", None, (0, 9)), lock("take", 5, (1, 2), by="b")],
        [lock("take", 2, (0, 9)), lock("take", 1, (1, 8), by="b"), lock("free", True, (2, 7), 1, by="c")],
        [lock("take", 1, (0, 1)), lock("lapse", None, (2, 3)), lock("renew", False, (4, 5), 1), lock("free", False, (6, 7), 1)],
        [lock("take", UNKNOWN, (0, INFINITE)), lock("take", None, (1, 2), by="b")],
        [lock("take", UNKNOWN, (0, INFINITE)), lock("take", 1, (1, 2), by="b")],
        [lock("take", 1, (0, 1)), lock("free", UNKNOWN, (2, INFINITE), 1), lock("take", 2, (3, 4), by="b")],
        [lock("take", 1, (0, 1)), lock("free", UNKNOWN, (2, INFINITE), 1), lock("take", None, (3, 4), by="b")],
    ],
)  # fmt: skip
def test_a_lock_that_can_have_answered_one_at_a_time_is_let_through(history: list[Call]) -> None:
    assert linear.check(history, objects.FREE, objects.locking) is None


@pytest.mark.parametrize(
    ("history", "stuck"),
    [
        ([lock("take", 1, (0, 1)), lock("take", 2, (2, 3), by="b")], "take"),
        ([lock("take", 1, (0, 9)), lock("take", 2, (1, 8), by="b")], "take"),
        ([lock("take", None, (0, 1))], "take"),
        ([lock("take", 2, (0, 1)), lock("free", True, (2, 3), 2), lock("take", 1, (4, 5))], "take"),
        ([lock("take", 2, (0, 1)), lock("free", True, (2, 3), 2), lock("take", 2, (4, 5))], "take"),
        ([lock("take", 1, (0, 1)), lock("free", False, (2, 3), 1)], "free"),
        ([lock("take", 1, (0, 1)), lock("free", True, (2, 3), 1), lock("free", True, (4, 5), 1)], "free"),
        ([lock("take", 1, (0, 1)), lock("lapse", None, (2, 3)), lock("renew", True, (4, 5), 1)], "renew"),
        # A release that began after somebody else had got it explains nothing.
        (
            [
                lock("take", 1, (0, 1)),
                lock("take", 2, (2, 3), by="b"),
                lock("free", UNKNOWN, (4, INFINITE), 1),
            ],
            "take",
        ),
    ],
)
def test_a_lock_that_cannot_have_answered_so_is_refused(history: list[Call], stuck: str) -> None:
    found = linear.check(history, objects.FREE, objects.locking)

    assert found is not None
    assert stuck in {call.do for call in found.stuck}
    assert len(found.done) < len(history)


def lead(answer: object, at: tuple[float, float], who: str) -> Call:
    return Call(who, "lead", who, answer, *at)


def resign(at: tuple[float, float], who: str) -> Call:
    return Call(who, "resign", who, None, *at)


@pytest.mark.parametrize(
    ("history", "is_possible"),
    [
        (
            [lead(True, (0, 2), "a"), lead(False, (0, 2), "b"), resign((3, 4), "a"), lead(True, (3, 5), "b")],
            True,
        ),
        ([lead(True, (0, 2), "a"), lead(True, (0, 2), "b")], False),
        ([lead(False, (0, 2), "a"), lead(False, (0, 2), "b")], False),
        ([lead(True, (0, 1), "a"), lead(True, (2, 3), "b"), resign((2, 4), "a")], True),
        ([lead(True, (0, 1), "a"), lead(True, (2, 3), "b"), resign((4, 5), "a")], False),
        ([lead(True, (0, 1), "a"), Call("t", "lapse", None, None, 2, 3), lead(True, (4, 5), "b")], True),
    ],
)
def test_leadership_is_with_one_at_a_time(history: list[Call], is_possible: bool) -> None:
    assert (linear.check(history, objects.NOBODY, objects.leading) is None) is is_possible


def test_a_search_without_time_knows_nothing() -> None:
    with pytest.raises(linear.TooLong, match="1 calls"):
        linear.check([lock("take", 1, (0, 1))], objects.FREE, objects.locking, seconds=0)


def test_what_was_looked_at_is_not_looked_at_again() -> None:
    # 16 calls at once, in 16! orders, and none explains the last one.
    refused = [lock("take", None, (0, 100), by=f"p{at % 7}") for at in range(16)]
    history = [lock("take", 1, (-2, -1)), *refused, lock("renew", False, (101, 102), 1)]

    assert linear.check(history, objects.FREE, objects.locking, seconds=15) is not None


@pytest.mark.parametrize(("processes", "count"), [(9, 9), (1, 201)])
def test_a_history_that_is_too_large_is_refused(processes: int, count: int) -> None:
    history = [lock("take", None, (at, at + 0.5), by=f"p{at % processes}") for at in range(count)]

    with pytest.raises(ValueError, match="at most 8 processes and 200 calls"):
        linear.check(history, objects.FREE, objects.locking)
