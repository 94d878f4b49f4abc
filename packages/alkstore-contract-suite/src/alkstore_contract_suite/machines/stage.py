"""Where steps are done: stores of one scope beside the model, and the comparison of what they answer."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from alkstore import AlkstoreError, EventReceiver, Store, Tx, WakeReceiver
from alkstore_contract_suite.factory import Crash, StoreFactory
from alkstore_contract_suite.failure import ContractFailure, shown
from alkstore_contract_suite.machines.trace import Step
from alkstore_contract_suite.model.allowed import Allowed, Raised, just, raising
from alkstore_contract_suite.model.wake import Ears
from alkstore_contract_suite.model.world import View, World

__all__ = [
    "LOOKS",
    "OPERATIONS",
    "Absent",
    "Look",
    "Named",
    "Operation",
    "Stage",
    "look",
    "micros",
    "operation",
    "span",
]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)

Operation: TypeAlias = Callable[["Stage", Step], Awaitable[bool]]
"""Does a step; gives whether it gave what it was to name."""

Look: TypeAlias = Callable[["Stage", Store], Awaitable[None]]

OPERATIONS: Final[dict[str, Operation]] = {}
LOOKS: Final[dict[str, Look]] = {}


class Absent(Exception):
    """A step takes what no step gave, or what ended meanwhile; it does nothing."""


def operation(do: str) -> Callable[[Operation], Operation]:
    """Declare what does the steps of this verb."""

    def declare(function: Operation) -> Operation:
        OPERATIONS[do] = function
        return function

    return declare


def look(area: str) -> Callable[[Look], Look]:
    """Declare what compares everything that can be seen of an area."""

    def declare(function: Look) -> Look:
        LOOKS[area] = function
        return function

    return declare


def micros(instant: datetime) -> int:
    """Give an instant in microseconds since 1970."""
    return (instant - EPOCH) // MICROSECOND


def span(duration: timedelta) -> int:
    """Give a duration in microseconds."""
    return duration // MICROSECOND


class Named(NamedTuple):
    """What a step gave: the object, what the model has for it, and the store that it came from."""

    real: Any
    model: Any
    on: str
    store: Store


@dataclass(slots=True)
class Open:
    """The open transaction: the storage has one at a time, since some engines let nobody else write meanwhile."""

    tx: Tx
    view: View
    on: str
    name: str
    acked: "list[Any]" = field(default_factory=list)


class Stage:
    """The stores of one scope, and what the model knows of them.

    Attributes:
        world: What is committed.
        ears: What receivers of wakes may have been told.
        now: The storage's time in microseconds; it stands still between two steps.
        queues, outboxes, streams: The names that were used so far, which are looked at.
        given: What steps gave, by name.
        tx: The open transaction, if there is one.
        step: The one that is being done.
        failures: Every answer that the model does not allow.
    """

    def __init__(self, factory: StoreFactory) -> None:
        self.factory = factory
        self.world = World()
        self.ears = Ears()
        self.now = 0
        self.queues: dict[str, None] = {}
        self.outboxes: dict[str, None] = {}
        self.streams: dict[str, None] = {}
        self.given: dict[str, Named] = {}
        self.tx: Open | None = None
        self.step: Step = {"do": "open"}
        self.failures: list[ContractFailure] = []
        self._stores: dict[str, Store] = {}

    async def begin(self) -> None:
        """Open the first store."""
        _ = await self.store("a")
        self.now = micros(await self.factory.now())

    async def do(self, step: Step, areas: tuple[str, ...]) -> bool | None:
        """Do a step, then look at everything; gives None for a step that cannot be done."""
        self.step = step
        try:
            gave = await OPERATIONS[step["do"]](self, step)
        except Absent:
            return None
        if self.failures:
            raise self.failures[0]
        store = await self.store(step.get("on", "a"))
        for area in areas:
            await LOOKS[area](self, store)
        return gave

    async def finish(self) -> None:
        """Close every store."""
        await self._let_go()
        for store in reversed(self._stores.values()):
            await store.aclose()
        self._stores.clear()

    # ---------------------------------------------------------------- what operations use

    async def store(self, on: str) -> Store:
        """Give a store, opened when it is first wanted."""
        if on not in self._stores:
            self._stores[on] = await self.factory.open(on)
        return self._stores[on]

    def take(self, name: str, *, on: str | None = None) -> Named:
        """Give what a step named so gave."""
        if name not in self.given:
            raise Absent(name)
        named = self.given[name]
        if on is not None and named.on != on:
            raise Absent(name)
        return named

    def give(self, step: Step, real: object, model: object, store: Store) -> None:
        """Name what a step gives."""
        if "as" in step:
            self.given[step["as"]] = Named(real, model, step.get("on", "a"), store)

    def writes(self, step: Step, on: str, allowed: Allowed) -> Allowed:
        """Give what is allowed to a write outside of the open transaction: this task is the one that uses it (TX-07)."""
        if self.tx is None:
            return allowed
        if self.tx.on != on:
            # Some engines would let it wait until the transaction ends, which it does not.
            raise Absent("a write beside another store's transaction")
        return raising("InsideTransaction")

    async def answer(self, awaitable: Awaitable[Any]) -> Any:
        """Give what a call answers, an error by the name of its type."""
        try:
            return await awaitable
        except AlkstoreError as error:
            return Raised(type(error).__name__)

    async def hold(
        self, allowed: Allowed, awaitable: Awaitable[Any], rows: str, of: Callable[[Any], Any] | None = None
    ) -> Any:
        """Hold a call to what the model allows, and give its answer; the model goes on from it.

        Args:
            rows: The rows of the contract that say so.
            of: Makes of the answer what the model speaks of.
        """
        answered = await self.answer(awaitable)
        told = answered if of is None or isinstance(answered, Raised) else of(answered)
        self.check(allowed, told, rows)
        return answered

    def check(self, allowed: Allowed, told: object, rows: str, what: str = "") -> None:
        """Hold an answer to what the model allows."""
        if not allowed.admits(told):
            promise = f"{what or self.step['do']} answers as the model does ({rows})"
            # A delivery's errors are the engine's to swallow.
            self.failures.append(ContractFailure(promise, allowed.expected, shown(told)))
            raise self.failures[0]
        allowed.then(told)

    def same(self, told: object, expected: object, rows: str, what: str) -> None:
        """Hold what was looked at to what the model has."""
        self.check(just(expected), told, rows, what)

    # ---------------------------------------------------------------- time and the end of stores

    async def advance(self, by: int) -> None:
        """Move now by microseconds, and take over what the storage makes of it."""
        await self.factory.advance(by / 1_000_000)
        now = micros(await self.factory.now())
        self.same(now, self.now + by, "CLK-02", "the clock")
        self.now = now

    async def end(self, kind: str) -> None:
        """Reopen or crash: every store ends, and the open transaction with them; what was named is gone."""
        first = self._stores.pop("a")
        for other in reversed(self._stores.values()):
            await other.aclose()
        self._stores.clear()
        if kind == "reopen":
            self._stores["a"] = await self.factory.reopen(first)
        else:
            await self.factory.crash(first, Crash.KILL if kind == "kill" else Crash.DROP)
        await self._let_go()

    async def _let_go(self) -> None:
        """End what was opened in stores, which may be dead by now: whoever drops it open is warned."""
        if self.tx is not None:
            _ = await self.answer(self.tx.tx.rollback())
        for named in self.given.values():
            if isinstance(named.real, EventReceiver | WakeReceiver):
                await named.real.aclose()
        self.tx = None
        self.given.clear()
        self.ears = Ears()
