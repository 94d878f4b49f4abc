"""The backends of a run and its fork server: started when first wanted, stopped at its end."""

import asyncio
from contextlib import AbstractAsyncContextManager

from alkstore_contract_suite.factory import Backend, EngineColumn
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

    def of(self, column: EngineColumn) -> Backend:
        """Give a column's backend. Call it where no event loop is running.

        Raises:
            Exception: Whatever the start raised, at the first call and at every later one.
        """
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
        """Leave every backend that was entered, and end every child process."""
        self.processes.close()
        while self._running:
            _, (runner, manager, _) = self._running.popitem()
            with runner:
                runner.run(_leave(manager))


async def _leave(manager: AbstractAsyncContextManager[Backend]) -> None:
    await manager.__aexit__(None, None, None)
