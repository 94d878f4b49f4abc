"""Everything that a storage holds, and what a transaction sees of it."""

from alkstore_contract_suite.model.allowed import Allowed, such
from alkstore_contract_suite.model.lock import Locks
from alkstore_contract_suite.model.queue import Jobs
from alkstore_contract_suite.model.row import Seen
from alkstore_contract_suite.model.schedule import Fire, Schedules
from alkstore_contract_suite.model.stream import Streams

__all__ = ["View", "World"]


class World:
    """The committed state. Only jobs and streams are ever part of a transaction."""

    def __init__(self) -> None:
        self.jobs = Jobs()
        self.streams = Streams()
        self.locks = Locks()
        self.schedules = Schedules()

    def tick(self, now: int) -> Allowed:
        """Allow the number of jobs that one pass fires."""
        due = self.schedules.due(now)
        count = sum(map(len, due))
        return such(f"{count}", lambda got: got == count, lambda _: None)

    def fired(self, now: int, due: "list[list[Fire]]", found: list[Seen]) -> bool:
        """Take in the jobs that a pass left: each of those due once, a schedule's ids in the order of its boundaries."""
        wanted = {
            (fire.job.queue, repr(fire.job.payload), fire.boundary): fire for fires in due for fire in fires
        }
        ids: dict[tuple[str, str], list[int]] = {}
        for seen in sorted(found, key=lambda seen: seen.scheduled_for or 0):
            fire = wanted.pop((seen.queue, repr(seen.payload), seen.scheduled_for or 0), None)
            if fire is None or seen.id in self.jobs.ids:
                return False
            ids.setdefault((seen.queue, repr(seen.payload)), []).append(seen.id)
            self.jobs.add(now, seen.id, fire.job, fire.boundary)
        return not wanted and all(each == sorted(each) for each in ids.values())

    def edges(self) -> list[int]:
        """Give the instants at which something becomes so, in order."""
        return sorted(self.jobs.edges() | self.locks.edges() | self.schedules.edges())


class View:
    """What one transaction sees: the world at its begin, which nobody else changes meanwhile, and its own writes."""

    def __init__(self, world: World) -> None:
        self.jobs = world.jobs.copy()
        self.streams = world.streams.copy()
        self.positions: dict[tuple[str, str], int] = {}
        self.notified: list[str] = []

    def land(self, world: World) -> None:
        """Commit."""
        world.jobs, world.streams = self.jobs, self.streams
