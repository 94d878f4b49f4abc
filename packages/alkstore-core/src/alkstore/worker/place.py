"""A place in a lane: one task that runs the handler for one job after the other, and finds out how each ended."""

import asyncio
import contextvars
import functools
import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from alkstore.errors import CodecError, show
from alkstore.job import JobHandle
from alkstore.logs import job_fields
from alkstore.threads import Threads
from alkstore.worker.handler import Call, Selector
from alkstore.worker.outcome import Answer, Ending, Fail, Retry

__all__ = ["Place", "Surroundings"]

LOGGER: Final = logging.getLogger("alkstore.worker")

OURS: Final = "alkstore."
"""What the modules between the worker and a handler begin with: what wraps the handlers of Django is one, too."""


class Surroundings(Protocol):
    """What a place needs of its lane."""

    @property
    def select(self) -> Selector: ...

    @property
    def threads(self) -> Threads: ...

    async def next_job(self, place: "Place", /) -> JobHandle | None:
        """Wait for a job; None once there is no more to come."""

    def finish(self, handle: JobHandle, /) -> None:
        """Have a job acked that is done, and that its handler has not settled."""

    async def conclude(self, handle: JobHandle, answer: Answer, /) -> None:
        """Give the job its outcome."""

    def replace(self, place: "Place", /) -> None:
        """Put another place where this one ends."""

    def note_value(self, value: object, /) -> None:
        """Hear of a returned value that means nothing."""


class Place:
    """Runs handlers until its lane has no more jobs for it."""

    __slots__ = ("_is_inside", "_lane", "_thread", "_wish", "task")

    def __init__(self, lane: Surroundings, context: contextvars.Context) -> None:
        self._lane = lane
        self._wish: Ending | None = None
        self._is_inside = False
        self._thread: asyncio.Future[object] | None = None
        self.task = asyncio.get_running_loop().create_task(self._work(), context=context)

    def interrupt(self, ending: Ending) -> None:
        """Cancel the handler that runs here, and let its job end so; no matter if it has ended by itself."""
        if self._is_inside and self._wish is None:
            self._wish = ending
            self.task.cancel()

    async def _work(self) -> None:
        clean = contextvars.copy_context()
        while (handle := await self._lane.next_job(self)) is not None:
            self._wish = None
            if handle._store._observation is None:
                answer = await self._answer(handle)
            else:
                answer = await self._observed_answer(handle)
            if answer is Ending.DONE and not handle._is_settled:
                self._lane.finish(handle)
            else:
                await self._lane.conclude(handle, answer)
            if self._thread is not None:
                await self._outlast(self._thread, handle)
            if not _is_same(clean):
                self._lane.replace(self)
                return

    async def _outlast(self, thread: asyncio.Future[object], handle: JobHandle) -> None:
        # Or a handler that hangs, retried again and again, would fill the process with its threads.
        self._thread = None
        LOGGER.warning(
            "job %d of queue %r: its handler still runs in a thread, which nothing can cancel; its place waits",
            handle._record.id,
            handle._record.queue,
            extra=job_fields(handle._record),
        )
        await asyncio.wait((thread,))

    # ------------------------------------------------------------ one job

    async def _answer(self, handle: JobHandle) -> Answer:
        try:
            call = self._lane.select(handle)
            positional, named = call.arguments.bind(handle)
        except CodecError as error:  # the next attempt would read the same
            return Fail(str(error))
        try:
            value = await self._run(call, positional, named)
        except asyncio.CancelledError:
            return self._cancelled()
        except (Retry, Fail) as verdict:
            value = verdict
        except (Exception, SystemExit) as error:
            # sys.exit() is how programs fail that are called as functions: were it let through, each worker in turn
            # would end by the same job, for ever.
            value = Retry(_from_handler(error))
        except GeneratorExit:
            raise  # nothing may be awaited any more if this coroutine is being closed; the lane gives the job back
        except BaseException as error:
            is_told_to_end = isinstance(error, KeyboardInterrupt)
            await self._lane.conclude(handle, Ending.GIVEN_BACK if is_told_to_end else Retry(error))
            raise
        self._take_back()
        if isinstance(value, (Retry, Fail)):
            return value
        if value is not None:
            self._lane.note_value(value)
        return Ending.DONE

    async def _observed_answer(self, handle: JobHandle) -> Answer:
        handle._begin_handling()
        try:
            answer = await self._answer(handle)
        except BaseException as error:
            handle._end_handling(error)
            raise
        handle._end_handling(_error(answer))
        return answer

    async def _run(self, call: Call, positional: Sequence[object], named: Mapping[str, object]) -> object:
        self._is_inside = True
        try:
            if call.timeout is None:
                return await self._invoke(call, positional, named)
            limit = asyncio.timeout(call.timeout)
            try:
                async with limit:
                    return await self._invoke(call, positional, named)
            except TimeoutError:
                if not limit.expired():
                    raise  # the handler's own
                raise Retry(f"the handler did not end within its timeout of {call.timeout:g} s") from None
        finally:
            self._is_inside = False

    async def _invoke(self, call: Call, positional: Sequence[object], named: Mapping[str, object]) -> object:
        if call.is_async:
            value = await call.function(*positional, **named)
        else:
            value = await self._in_thread(functools.partial(call.function, *positional, **named))
        # What is a plain function only outside (a decorator's, a partial's) may still give something to await, and what
        # forgot an await does.
        if inspect.isawaitable(value):
            value = await value
        if inspect.isgenerator(value) or inspect.isasyncgen(value):
            raise TypeError(f"handler gave {show(value)}, of which nothing has run: it has a yield in it")
        return value

    async def _in_thread(self, function: functools.partial[object]) -> object:
        context = contextvars.copy_context()
        thread = self._lane.threads.run(functools.partial(context.run, function))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            self._thread = thread
            thread.add_done_callback(_retrieve)
            raise

    def _cancelled(self) -> Answer:
        if (wish := self._take_back()) is not None:
            return wish
        if self.task.cancelling():  # by whoever ends the loop: there may still be time to give the job back
            return Ending.GIVEN_BACK
        return Retry("the handler was cancelled by something of its own")

    def _take_back(self) -> Ending | None:
        """Take our own cancellation back, which the handler may have swallowed."""
        wish, self._wish = self._wish, None
        if wish is not None:
            self.task.uncancel()
        return wish


def _from_handler(error: BaseException) -> BaseException:
    """Leave our own frames out, which would stand before the handler's in each log and in each job."""
    trace = error.__traceback__
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(OURS):
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


def _error(answer: Answer) -> BaseException | None:
    if isinstance(answer, (Retry, Fail)):
        return answer.reason if isinstance(answer.reason, BaseException) else answer
    return None if answer is Ending.DONE else asyncio.CancelledError()


def _is_same(context: contextvars.Context) -> bool:
    try:
        return contextvars.copy_context() == context
    except Exception:  # a value that the handler left there cannot even be compared
        return False


def _retrieve(thread: asyncio.Future[object]) -> None:
    if not thread.cancelled() and (error := thread.exception()) is not None:
        LOGGER.warning("a handler failed in its thread, long after its job had ended: %s", show(error))
