"""The backends of a run and its fork server: started when first wanted, stopped at its end."""

import asyncio
from contextlib import AbstractAsyncContextManager, ExitStack

from alkstore_contract_suite.factory import Backend, EngineColumn, Shares
from alkstore_contract_suite.processes import Processes

__all__ = ["Backends"]


class Backends:
    """One backend a column; each is entered and left in one event loop of its own.

    Args:
        worker: Tells parallel test processes apart.

    Attributes:
        processes: What forks the child processes of the run.
    """

    def __init__(self, worker: str) -> None:
        self.processes = Processes()
        self._worker = worker
        self._running: dict[str, tuple[asyncio.Runner, AbstractAsyncContextManager[Backend], Backend]] = {}
        self._failed: dict[str, Exception] = {}
        self._shared: set[str] = set()
        self._sharing = ExitStack()

    def of(self, column: EngineColumn) -> Backend:
        """Give a column's backend. Call it where no event loop is running.

        Raises:
            Exception: Whatever the start raised, at the first call and at every later one.
        """
        self.share(column)
        if column.name in self._failed:
            raise self._failed[column.name]
        if column.name not in self._running:
            try:
                self._start(column)
            except Exception as error:
                # Starting a broken server again for each of a thousand cases would take for ever.
                self._failed[column.name] = error
                raise
        return self._running[column.name][2]

    def share(self, column: EngineColumn) -> None:
        """Start what a column's backends have in common, unless it is; `of` raises what went wrong."""
        if column.name in self._shared:
            return
        self._shared.add(column.name)
        if isinstance(column, Shares):
            try:
                self._sharing.enter_context(column.shared())
            except Exception as error:  # whatever an author's column meets belongs to its cases
                self._failed[column.name] = error

    def in_worker(self, name: str) -> "Backends":
        """Give, in a fork of this process, backends of its own that find what was shared here."""
        other = Backends(name)
        other._shared |= self._shared
        other._failed |= self._failed
        return other

    def _start(self, column: EngineColumn) -> None:
        runner = asyncio.Runner(debug=False, loop_factory=asyncio.new_event_loop)
        manager = column.backend(self._worker)
        try:
            backend = runner.run(manager.__aenter__())
        except BaseException:
            runner.close()
            raise
        self._running[column.name] = runner, manager, backend

    def close(self) -> None:
        """Leave every backend that was entered, end every child process, and then what was shared."""
        with self._sharing:
            self.processes.close()
            while self._running:
                _, (runner, manager, _) = self._running.popitem()
                with runner:
                    runner.run(_leave(manager))


async def _leave(manager: AbstractAsyncContextManager[Backend]) -> None:
    await manager.__aexit__(None, None, None)
