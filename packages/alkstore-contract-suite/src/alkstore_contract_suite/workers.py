"""Runs cases in several worker processes at once, and hands their outcomes out in whatever order they are asked for.

The process that collected the cases runs none of them: it deals them out, keeps what comes back until pytest asks for it, and
reports as if it had run them itself. So order, statuses, ``-x``, and every reporting plugin are those of a run without
workers. A case is dealt out when the rows that it depends on are settled, to whoever has the fewest.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import IO, Final

from alkstore_contract_suite import worker
from alkstore_contract_suite.backends import Backends
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Case
from alkstore_contract_suite.session import Session
from alkstore_contract_suite.worker import Done

__all__ = ["Workers", "is_alone"]

AHEAD: Final = 2
"""Cases that a worker has at a time: one that it runs, and one so that it need not wait for us."""

LIMIT: Final = 10.0
"""Seconds of real time that a worker has for ending, its backends included."""

LAST_WORDS: Final = 2_000
"""Characters of what a dead worker wrote that an outcome shows."""

THREADS: Final = "/proc/self/task"
"""Where Linux lists the threads of a process, those that Python does not know included."""


@dataclass(frozen=True, slots=True)
class _Worker:
    process: ForkProcess
    channel: Connection
    output: IO[bytes]
    dealt: deque[Case] = field(default_factory=deque)

    def deal(self, case: Case, place: int) -> None:
        self.dealt.append(case)
        with suppress(OSError):  # it has died; that is found where its outcomes are awaited
            self.channel.send(place)

    def tell_to_end(self) -> None:
        with suppress(OSError):  # it has died
            self.channel.send(None)
            if self.dealt and self.process.pid is not None:
                os.kill(self.process.pid, signal.SIGINT)

    def ended(self) -> str:
        """Wait for its end, and say what is known of it."""
        self.process.join(LIMIT)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        words = worker.said(self.output)[-LAST_WORDS:].strip()
        return f"status {self.process.exitcode}{f'; it said: {words}' if words else ''}"

    def free(self) -> None:
        self.channel.close()
        self.output.close()
        self.process.close()


class Workers:
    """Worker processes, forked when the first outcome is asked for.

    Args:
        session: Decides what a failure blocks, and what a case's outcome is.
        backends: What was shared already, for workers to find.
        cases: Those to run, in order.
        count: How many processes at most.
    """

    def __init__(self, session: Session, backends: Backends, cases: Sequence[Case], count: int) -> None:
        self._session = session
        self._backends = backends
        self._cases = cases
        self._places = {case: place for place, case in enumerate(cases)}
        self._count = count
        self._waiting = deque(cases)
        self._open = {*cases}
        self._unsettled = Counter((case.engine, case.row.id) for case in cases)
        self._done: dict[Case, Done] = {}
        self._living: list[_Worker] = []
        self._forked = 0

    def run(self, case: Case) -> Outcome:
        """Give the outcome of a case, and say here what it said there; asked again, run it again."""
        if case not in self._done and case not in self._open:
            self._open.add(case)
            self._unsettled[case.engine, case.row.id] += 1
            self._waiting.appendleft(case)
        try:
            while case not in self._done:
                self._deal()
                if case not in self._done:
                    self._listen()
        except BaseException:
            self._give_up(case)
            raise
        done = self._done.pop(case)
        sys.stdout.write(done.said)
        for warned in done.warned:
            warnings.warn_explicit(warned.text, warned.category, warned.file, warned.line)
        return done.outcome

    def close(self) -> None:
        """End every worker; what one has in hand is broken off, its backends are closed all the same."""
        for each in self._living:
            each.tell_to_end()
        while self._living:
            self._end(self._living[-1])

    def _give_up(self, case: Case) -> None:
        # A time limit or a Ctrl-C may have come in the middle of a message, so no worker can be understood any more; and the
        # case that hangs must not keep one for itself.
        self.close()
        if case in self._waiting:
            self._waiting.remove(case)
        self._settle(case, Done(Outcome(status=Status.INCONCLUSIVE, reason="it was broken off")))
        del self._done[case]

    def _end(self, ending: _Worker) -> str:
        """Take one off the list, give back what it had in hand, and say how it ended."""
        self._living.remove(ending)
        self._waiting.extendleft(reversed(ending.dealt))
        how = ending.ended()
        ending.free()
        return how

    # ---------------------------------------------------------------- dealing

    def _deal(self) -> None:
        while len(self._living) < self._count and len(self._living) < len(self._waiting):
            self._fork()
        for ahead in range(AHEAD):
            for each in self._living:
                if len(each.dealt) > ahead:
                    continue
                case = self._next()
                if case is None:
                    return
                each.deal(case, self._places[case])

    def _next(self) -> Case | None:
        """Take the first case whose fate nothing else decides any more; those that are blocked are settled on the way."""
        for case in [*self._waiting]:
            if any(self._unsettled[case.engine, id] for id in case.row.depends):
                continue
            self._waiting.remove(case)
            blocked = self._session.blocked(case)
            if blocked is None:
                return case
            self._settle(case, Done(blocked))
        return None

    def _settle(self, case: Case, done: Done) -> None:
        self._session.note(case, done.outcome)
        self._unsettled[case.engine, case.row.id] -= 1
        self._open.discard(case)
        self._done[case] = done

    # ---------------------------------------------------------------- listening

    def _listen(self) -> None:
        ready = wait([each.channel for each in self._living])
        for each in [*self._living]:
            if each.channel in ready:
                try:
                    done = each.channel.recv()
                except (EOFError, OSError):
                    self._bury(each)
                else:
                    self._settle(each.dealt.popleft(), done)

    def _bury(self, dead: _Worker) -> None:
        # The first was begun, and may well be what ended the process; the next one is somebody else's now.
        begun = dead.dealt.popleft() if dead.dealt else None
        how = f"the process that ran it ended with {self._end(dead)}"
        if begun is not None:
            self._settle(begun, Done(Outcome(status=Status.INCONCLUSIVE, reason=how)))

    # ---------------------------------------------------------------- forking

    def _fork(self) -> None:
        self._forked += 1
        ours, theirs = multiprocessing.Pipe()
        output = tempfile.TemporaryFile()  # noqa: SIM115  # it stays open as long as the worker
        name = f"w{self._forked}"
        process = ForkProcess(target=self._serve, args=(name, ours, theirs, output), name=name)
        try:
            process.start()
        except BaseException:
            ours.close()
            output.close()
            raise
        finally:
            theirs.close()
        self._living.append(_Worker(process, ours, output))

    def _serve(self, name: str, ours: Connection, theirs: Connection, output: IO[bytes]) -> None:
        # As long as one process has an end of the other side, the end of this run is told to nobody.
        for channel in (ours, *(each.channel for each in self._living)):
            channel.close()
        self._session.slow_down(self._count)
        backends = self._backends.in_worker(name)
        try:
            worker.serve(theirs, output, self._cases, lambda case: self._session.execute(case, backends))
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            backends.close()


def is_alone() -> bool:
    """Whether this process has one thread: a fork copies the locks that others hold, and nobody gives them back."""
    native = len(os.listdir(THREADS)) if os.path.isdir(THREADS) else 1
    return max(native, threading.active_count()) == 1
