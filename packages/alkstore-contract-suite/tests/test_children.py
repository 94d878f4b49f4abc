"""Child processes of cases: what they run, how they end, and that none of them outlives what it belongs to."""

import asyncio
import importlib
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hanging import HUNG

from alkstore import InvalidName
from alkstore_contract_suite import rows
from alkstore_contract_suite.children import ChildError, Killed
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.factory import StoreFactory
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Case
from alkstore_contract_suite.processes import ProcessDied, Processes
from alkstore_contract_suite.row import Row
from alkstore_contract_suite.running import Limits, run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")

FOLDER = Path(__file__).parent / "processes"


@pytest.fixture(scope="module")
def standin() -> Iterator[Any]:
    # By the import path, as an author's package is: a child imports what is sent to it by name.
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("standin")
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.close()


@pytest.fixture
async def ctx(standin: Any, processes: Processes) -> AsyncIterator[Context]:
    context = Context(standin.Factory(), mode="process", random=random.Random(1), processes=processes)
    await context.begin()
    yield context
    await context.finish()
    assert context.leaks == []


def outcome_of(
    body: Callable[[Context], Awaitable[None]], standin: Any, processes: Processes, factory: str = "Factory"
) -> Outcome:
    class Backend:
        @asynccontextmanager
        async def scope(self, case: str) -> AsyncIterator[StoreFactory]:
            yield getattr(standin, factory)()

    row = Row(
        id="Q-01",
        name="row",
        text="a promise",
        oracle="a look",
        modes=("process",),
        needs=(),
        kills=(),
        level="MUST",
        since="1.0",
        depends=(),
        hints="",
        function=body,
    )
    limits = Limits(case=HUNG, soon=HUNG)
    return run(Backend(), Case(row, "standin", "process"), seed=0, limits=limits, processes=processes)


async def test_a_child_is_another_process_with_a_store_of_its_own(ctx: Context, standin: Any) -> None:
    first, second = await ctx.processes(2)

    pids = {await first.run(standin.pid), await second.run(standin.pid)}

    assert pids == {first.pid, second.pid}
    assert os.getpid() not in pids


async def test_a_function_gets_what_is_sent_and_its_result_comes_back(ctx: Context, standin: Any) -> None:
    child = await ctx.process()

    assert await child.run(standin.added, 40, second=2) == 42


async def test_a_child_opens_its_store_with_the_options_that_are_given(ctx: Context, standin: Any) -> None:
    child = await ctx.process(worker_id="who")

    assert await child.run(standin.worker_id) == "who"


async def test_an_error_comes_back_with_its_attributes_and_says_from_where(
    ctx: Context, standin: Any
) -> None:
    child = await ctx.process()

    with pytest.raises(InvalidName) as caught:
        await child.run(standin.refuse)

    assert caught.value.name == " "
    assert "in process p1" in caught.value.__notes__[0]


async def test_a_method_that_a_child_misses_is_named(ctx: Context, standin: Any) -> None:
    child = await ctx.process()

    with pytest.raises(NotImplementedError) as caught:
        await child.run(standin.miss_a_method)

    assert caught.value.args == ("list_names",)


@pytest.mark.parametrize("name", ["refuse_awkwardly", "give_a_lock"])
async def test_what_cannot_be_pickled_is_told_as_an_error(ctx: Context, standin: Any, name: str) -> None:
    child = await ctx.process()

    with pytest.raises((ChildError, TypeError)):
        await child.run(getattr(standin, name))


async def test_a_function_that_a_child_cannot_import_is_an_error_at_once(ctx: Context) -> None:
    async def local(store: object) -> None:
        """Nothing that a name leads to."""

    child = await ctx.process()

    with pytest.raises((AttributeError, ImportError, Exception), match="local"):
        await child.run(local)


async def test_arms_overlap_by_when_their_processes_worked_not_by_how_long_they_were_waited_for(
    ctx: Context, standin: Any
) -> None:
    one, other = await ctx.processes(2)
    has_ended = asyncio.Event()

    async def first() -> None:
        await one.run(standin.pid)
        has_ended.set()

    async def second() -> None:
        await has_ended.wait()
        await other.run(standin.pid)

    await ctx.race(first(), second())

    (unraced,) = ctx.unraced
    assert str(unraced) == "0 of 2 in the race overlapped another one, at least 2 must"


async def test_a_cancellation_is_passed_on(ctx: Context, standin: Any) -> None:
    child = await ctx.process()
    task = child.start(standin.for_ever)
    assert await child.hear() == "begun"

    task.cancel()

    assert await child.hear() == "ended"


async def test_the_case_and_a_child_tell_each_other_values(ctx: Context, standin: Any) -> None:
    child = await ctx.process()
    _ = child.start(standin.echo)

    for value in (1, {"two": [2]}):
        child.tell(value)

        assert await child.hear() == value


async def test_a_killed_child_has_ended_and_what_it_ran_is_cancelled(ctx: Context, standin: Any) -> None:
    child = await ctx.process()
    task = child.start(standin.for_ever)
    awaited = asyncio.ensure_future(child.run(standin.for_ever))
    assert [await child.hear(), await child.hear()] == ["begun", "begun"]

    await child.kill()

    assert child.status == -signal.SIGKILL
    assert is_gone(child.pid)
    with pytest.raises(Killed):
        await awaited
    await asyncio.wait([task])
    assert task.cancelled()
    with pytest.raises(Killed):
        await child.run(standin.pid)


async def test_what_a_child_told_before_it_was_killed_is_heard(ctx: Context, standin: Any) -> None:
    child = await ctx.process()
    _ = child.start(standin.tell_many, 1_000)
    first = await child.hear()

    await child.kill()

    rest = child.heard()
    assert [first, *rest] == list(range(1 + len(rest)))


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells of the end of others' children")
async def test_what_a_child_told_is_heard_though_it_was_asked_for_more_after_its_end(
    ctx: Context, standin: Any
) -> None:
    child = await ctx.process()
    _ = child.start(standin.echo)
    child.tell("begun")
    assert await child.hear() == "begun"
    child.tell("asked")
    # Blocking on purpose: the case's loop is to be late, as on a busy machine.
    assert select.select([child._forked.channel], [], [], HUNG)[0]
    end = os.pidfd_open(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    assert select.select([end], [], [], HUNG)[0]
    os.close(end)

    child.tell("too late")
    await child.kill()

    assert child.heard() == ["asked"]


async def test_a_stop_and_a_return_are_clean_ends(ctx: Context) -> None:
    stopped, left = await ctx.processes(2)

    await stopped.stop()
    await left.leave()

    assert (stopped.status, left.status) == (0, 0)


async def test_moving_the_time_moves_it_in_every_child(ctx: Context, standin: Any) -> None:
    children = await ctx.processes(2)
    waiting = [child.start(standin.claim_later, 60) for child in children]
    for child in children:
        await child.hear()
    await ctx.advance(59.999999)
    assert not any(task.done() for task in waiting)

    await ctx.advance(0.000001)

    assert [task.result() for task in waiting] == ["due", "due"]
    await ctx.advance(-3600)
    assert [await child.run(standin.created_at) for child in children] == [await ctx.now()] * 2


async def test_a_paused_child_is_told_the_time_when_it_goes_on(ctx: Context, standin: Any) -> None:
    child = await ctx.process()
    task = child.start(standin.claim_later, 60)
    await child.hear()

    child.pause()
    await ctx.advance(60)

    assert not task.done()
    await child.go_on()
    assert await task == "due"


def test_a_child_that_ends_by_itself_fails_the_case_with_what_it_said(
    standin: Any, processes: Processes
) -> None:
    async def body(ctx: Context) -> None:
        _ = (await ctx.process()).start(standin.die)
        await ctx.soon(asyncio.Event().wait(), "never")

    outcome = outcome_of(body, standin, processes)

    assert outcome.status is Status.FAIL
    assert "process p1 ended by itself with status 7; it said: the last words" in outcome.reason


def test_a_recipe_that_fails_in_the_child_fails_the_case(standin: Any, processes: Processes) -> None:
    async def body(ctx: Context) -> None:
        _ = await ctx.process()

    outcome = outcome_of(body, standin, processes, "Awkward")

    assert outcome.reason == "unexpected ValueError: 'no such storage'"


@pytest.mark.parametrize(
    ("factory", "promise"),
    [
        ("Factory", "a child has the case's storage"),
        ("StandsStill", "a child has the case's time"),
    ],
)
def test_a_recipe_of_other_storage_or_time_makes_the_harness_untrustworthy(
    standin: Any, processes: Processes, factory: str, promise: str
) -> None:
    (row,) = [row for row in rows.registered() if row.id == "FACTORY-11"]

    outcome = outcome_of(row.function, standin, processes, factory)

    assert outcome.promise == promise


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("leave_a_task", "still there after the close: <Task pending"),
        ("leave_a_thread", "still there after the close: <Thread(left over"),
        ("fail_in_a_callback", "RuntimeError('in a callback')"),
    ],
)
def test_what_a_child_leaves_behind_fails_the_case(
    standin: Any, processes: Processes, name: str, said: str
) -> None:
    async def body(ctx: Context) -> None:
        child = await ctx.process()
        await child.run(getattr(standin, name))
        await child.stop()

    outcome = outcome_of(body, standin, processes)

    assert outcome.status is Status.FAIL
    assert said in outcome.reason


def test_no_child_outlives_its_case(standin: Any, processes: Processes) -> None:
    pids: list[int] = []

    async def body(ctx: Context) -> None:
        for child in await ctx.processes(3):
            _ = child.start(standin.for_ever)
            pids.append(child.pid)

    assert outcome_of(body, standin, processes).status is Status.PASS

    assert [is_gone(pid) for pid in pids] == [True] * 3


def test_a_run_whose_fork_server_was_lost_says_so(standin: Any) -> None:
    processes = Processes()
    processes.start()
    assert processes._server is not None
    processes._server.kill()
    processes._server.wait()

    async def body(ctx: Context) -> None:
        with pytest.raises(ProcessDied):
            await ctx.process()

    outcome = outcome_of(body, standin, processes)

    processes.close()
    assert outcome.status is Status.PASS


ORPHANS = """
import asyncio, random, sys
sys.path.insert(0, {folder!r})
import standin
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.processes import Processes

async def main():
    processes = Processes()
    ctx = Context(standin.Factory(), mode="process", random=random.Random(1), processes=processes)
    await ctx.begin()
    children = await ctx.processes(2)
    tasks = [child.start(standin.for_ever) for child in children]
    print(processes._server.pid, *[child.pid for child in children], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells of the end of others' children")
def test_no_process_outlives_a_test_process_that_was_killed() -> None:
    command = [sys.executable, "-c", ORPHANS.format(folder=str(FOLDER))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        ends = [os.pidfd_open(int(pid)) for pid in run.stdout.readline().split()]

        run.kill()

    assert len(ends) == 3
    for end in ends:
        ready, _, _ = select.select([end], [], [], HUNG)
        os.close(end)
        assert ready == [end]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
