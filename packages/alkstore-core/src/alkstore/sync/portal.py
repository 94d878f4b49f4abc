"""An event loop in a thread of its own, and the way into it from any other thread.

Each calling thread has one task in the loop, its *line*, which does the thread's calls one after the other: so what asyncio
knows of a task holds for a thread. A thread inside a transaction is refused a write beside it at once, and a lock that is
lost interrupts the thread's call. A call that calls back (a handler) is answered on the calling thread, which waits for it
anyway; what the handler calls in turn goes through a second line, and so on.
"""

import asyncio
import contextvars
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from alkstore.errors import Closed, InvalidArgument
from alkstore.plain import CALLER
from alkstore.sync.lending import Loan, Within
from alkstore.threads import stopped, tell

__all__ = ["Bounce", "Portal"]

T = TypeVar("T")

PATIENCE: Final = 10.0
"""Seconds that the end of the loop is waited for."""


class Portal:
    """Runs coroutines for other threads."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._callers = threading.local()
        # Reentrant: a collection within a turn may find an ended thread's caller, which tells from its finaliser.
        self._turn = threading.RLock()
        self._is_closed = False
        self._unanswered: set[_Job] = set()
        # A daemon: what forgets to close must not keep the process from ending.
        self._thread = threading.Thread(target=self._loop.run_forever, name="alkstore-sync", daemon=True)
        self._thread.start()

    def call(self, work: "Callable[[Bounce], Awaitable[T]]", context: contextvars.Context | None = None) -> T:
        """Run a coroutine in the loop and wait for it; what it raises is raised here.

        It runs in ``context``, by default a copy of this thread's. An interrupt (Ctrl-C) cancels it first, and waits until it has ended.

        Raises:
            Closed: The portal is closed.
            InvalidArgument: This is the loop's own thread, or another process.
        """
        self._check()
        caller: _Caller | None = getattr(self._callers, "caller", None)
        if caller is None:
            caller = self._callers.caller = _Caller(self)
        with caller as line:
            answered: T = line.call(work, context or contextvars.copy_context())
            return answered

    def close(self) -> None:
        """End the loop and its thread; calls that wait get `Closed`. Closing twice is fine."""
        if self.pid != os.getpid():
            return
        with self._turn:
            if self._is_closed:
                return
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._end)
        self._thread.join(PATIENCE)
        if not self._thread.is_alive():
            self._loop.close()

    def tell(self, function: Callable[..., object], *arguments: object) -> bool:
        """Run a plain function in the loop, soon; False if the portal is closed, and it never will be."""
        if self.pid != os.getpid():
            return False
        with self._turn:  # whatever is told before the end is done before it, and nothing is told after it
            if self._is_closed:
                return False
            self._loop.call_soon_threadsafe(function, *arguments)
            return True

    def _check(self) -> None:
        if self.pid != os.getpid():
            raise InvalidArgument("this belongs to the process that made it; make another one after a fork")
        if threading.current_thread() is self._thread:
            raise InvalidArgument(
                "a plain call from inside alkstore's own event loop would wait for itself; use the async store there"
            )

    # ------------------------------------------------------------ in the loop

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def begin(self, job: "_Job") -> None:
        self._unanswered.add(job)

    def answer(self, job: "_Job", answer: "_Answer") -> None:
        self._unanswered.discard(job)
        job.is_answered = True
        for future in job.questions:  # nobody is there to answer them, and what asked must not wait for ever
            tell(future, None, Closed("store"))
        job.answers.put(answer)

    def _end(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        ending = self._loop.create_task(self._finish())
        ending.add_done_callback(lambda _: self._loop.stop())

    async def _finish(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=PATIENCE)
        for job in list(self._unanswered):
            self.answer(job, _Answer(error=Closed("store")))
        await self._loop.shutdown_asyncgens()


class _Caller:
    """A thread that calls: a line for each call that it is in at the moment."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._lines: list[_Line] = []
        self._depth = 0

    def __enter__(self) -> "_Line":
        if self._depth == len(self._lines):
            self._lines.append(_Line(self._portal))
        self._depth += 1
        return self._lines[self._depth - 1]

    def __exit__(self, *_: object) -> None:
        self._depth -= 1

    def __del__(self) -> None:
        # The thread has ended, so nobody calls through its lines any more.
        for line in self._lines:
            self._portal.tell(line.end)


@dataclass(eq=False, slots=True)
class _Job:
    """One call: what to run, and where its answer goes."""

    work: "Callable[[Bounce], Awaitable[Any]]"
    context: contextvars.Context
    answers: "queue.SimpleQueue[_Answer | _Question]" = field(default_factory=queue.SimpleQueue)
    questions: "set[asyncio.Future[Any]]" = field(default_factory=set)
    is_begun: bool = False
    is_interrupted: bool = False
    is_answered: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Question:
    """Something to run on the calling thread, and whom to tell how it went."""

    function: Callable[[], object]
    future: asyncio.Future[Any]
    context: contextvars.Context

    def answer(self) -> object:
        """Run the function on this thread, with the variables of who asked."""
        loan = Loan(self.context)
        try:
            return self.function()
        finally:
            loan.give_back()


class Bounce:
    """Runs plain functions on the thread that waits for the call."""

    def __init__(self, job: _Job) -> None:
        self._job = job

    async def __call__(self, function: Callable[[], T]) -> T:
        """Run a function there, and give what it gave; what it raised is raised.

        Raises:
            Closed: The call has ended, or ends before the function.
        """
        job = self._job
        if job.is_answered:
            raise Closed("store")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job.questions.add(future)
        job.answers.put(_Question(function, future, contextvars.copy_context()))
        try:
            return await future
        finally:
            job.questions.discard(future)


class _Line:
    """One task in the loop, which does one call after the other."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._is_ending = False

    # ------------------------------------------------------------ on the calling thread

    def call(self, work: Callable[[Bounce], Awaitable[Any]], context: contextvars.Context) -> Any:
        job = _Job(work, context)
        if not self._portal.tell(self._submit, job):
            raise Closed("store")
        try:
            answer = self._await(job)
        except BaseException:
            # Ctrl-C: what was begun must have ended before the caller goes on to close what it uses.
            self._portal.tell(self._interrupt, job)
            with suppress(queue.Empty):
                while isinstance(question := job.answers.get(timeout=PATIENCE), _Question):
                    self._portal.tell(tell, question.future, None, Closed("store"))
            raise
        if answer.error is not None:
            raise answer.error
        return answer.value

    def _await(self, job: _Job) -> _Answer:
        while isinstance(answer := job.answers.get(), _Question):
            if answer.future.done():  # whoever asked has gone
                continue
            try:
                value = answer.answer()
            except StopIteration as error:
                self._portal.tell(tell, answer.future, None, stopped(error))
            except Exception as error:
                self._portal.tell(tell, answer.future, None, error)
            else:
                self._portal.tell(tell, answer.future, value, None)
        return answer

    # ------------------------------------------------------------ in the loop

    def end(self) -> None:
        self._is_ending = True
        if self._task is not None:
            self._task.cancel()

    def _submit(self, job: _Job) -> None:
        self._portal.begin(job)
        self._jobs.put_nowait(job)
        if self._task is None:
            # Not in the context of the first call: the next one may have none of its variables.
            self._task = asyncio.get_running_loop().create_task(self._work(), context=contextvars.Context())

    def _interrupt(self, job: _Job) -> None:
        if job.is_answered:
            return
        job.is_interrupted = True
        if (
            self._task is not None and job.is_begun
        ):  # a task that is cancelled before its first step never takes it
            self._task.cancel()

    async def _work(self) -> None:
        while not self._is_over:
            try:
                job = await self._jobs.get()
            except asyncio.CancelledError:
                # Unless this is the end, a lease of the thread was lost between two calls: the end of its block tells.
                continue
            await self._do(job)
            del (
                job
            )  # or what the thread called with, a session of its own perhaps, would live until its next call

    @property
    def _is_over(self) -> bool:
        return self._is_ending or self._portal.is_closed

    async def _do(self, job: _Job) -> None:
        # Who was interrupted before it began waits for its end all the same, and must not begin to wait for a job, say.
        if job.is_interrupted:
            self._portal.answer(job, _Answer(error=asyncio.CancelledError()))
            return
        job.is_begun = True
        answer = await self._outcome(job)
        task = asyncio.current_task()
        if job.is_interrupted and task is not None:
            task.uncancel()
        self._portal.answer(job, answer)

    async def _outcome(self, job: _Job) -> _Answer:
        bounce = Bounce(job)
        caller = job.context.run(CALLER.set, bounce)
        try:
            return _Answer(await Within(job.context, lambda: job.work(bounce)))
        except asyncio.CancelledError as error:
            return _Answer(error=Closed("store") if self._portal.is_closed else error)
        except BaseException as error:
            return _Answer(error=error)
        finally:
            job.context.run(CALLER.reset, caller)
