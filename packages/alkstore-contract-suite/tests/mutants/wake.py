"""Engines that wake the wrong ones, at the wrong moment, or too often, and receivers that lose what they heard."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mutant import Patch, mutant

from alkstore import Closed, EventReceiver, Wake, WakeReceiver
from alkstore.engine import EngineTransaction, NewWake, Topic, TopicKind, Watch
from alkstore.life import Life
from alkstore.wake import Receiver
from alkstore.watch import _HubWatch
from alkstore_mem.engine import MemEngine
from alkstore_mem.transaction import MemTransaction


def _channel(name: str) -> Topic:
    return Topic(TopicKind.CHANNEL, name)


class Notifying(MemEngine):
    """An honest engine whose faulty children treat each channel of a notify in their own way."""

    async def notify(self, wakes: Sequence[NewWake]) -> None:
        for wake in wakes:
            self.notify_one(wake.channel)

    def notify_one(self, channel: str) -> None:
        self._state.hub.wake(_channel(channel))


# ---------------------------------------------------------------- who is woken


@mutant("first-receiver-takes-the-wake", kills="WAKE-01")
class FirstReceiverTakesTheWake(Notifying):
    def notify_one(self, channel: str) -> None:
        for watch in list(self._state.hub._watches.get(_channel(channel), ()))[:1]:
            watch.note(1)


@mutant("notify-wakes-nobody", kills="WAKE-01", wide="whatever waits for a notify")
class NotifyWakesNobody(Notifying):
    def notify_one(self, channel: str) -> None:
        """Nobody hears."""


@mutant("notify-wakes-all-channels", kills="WAKE-02")
class NotifyWakesAllChannels(Notifying):
    def notify_one(self, channel: str) -> None:
        for topic in self._state.hub.topics():
            if topic.kind is TopicKind.CHANNEL:
                self._state.hub.wake(topic)


@mutant("listen-hears-the-past", kills="WAKE-02")
class ListenHearsThePast(Notifying):
    def notify_one(self, channel: str) -> None:
        self.__dict__.setdefault("past", set()).add(channel)
        super().notify_one(channel)

    async def watch(self, topic: Topic) -> Watch:
        watch = await super().watch(topic)
        if topic.kind is TopicKind.CHANNEL and topic.name in self.__dict__.get("past", ()):
            assert isinstance(watch, _HubWatch)
            watch.note(1)
        return watch


@mutant("notify-wakes-twice", kills="WAKE-03")
class NotifyWakesTwice(Notifying):
    def notify_one(self, channel: str) -> None:
        self._state.hub.wake(_channel(channel), 2)


@mutant("wake-lost-between-waits", kills="WAKE-04", wide="whatever waits for a second wake")
def wake_lost_between_waits(patch: Patch) -> None:
    original = _HubWatch.note

    def note(watch: _HubWatch, times: int) -> None:
        if watch.topic.kind is not TopicKind.CHANNEL or watch._waiter is not None:
            original(watch, times)

    patch.attribute(_HubWatch, "note", note)


@mutant("stalled-receiver-hoards", kills="WAKE-04")
class StalledReceiverHoards(Notifying):
    def notify_one(self, channel: str) -> None:
        waiting = self._state.hub._watches.get(_channel(channel), {})
        self.__dict__.setdefault("hoard", []).extend(waiting)
        super().notify_one(channel)


# ---------------------------------------------------------------- transactions


class Transacting(MemEngine):
    """An honest engine whose faulty children begin a transaction of their own kind."""

    kind: type[MemTransaction] = MemTransaction

    async def begin(self, *place: Any, **named: Any) -> EngineTransaction:
        tx = await super().begin(*place, **named)
        assert isinstance(tx, MemTransaction)
        tx.__class__ = self.kind
        return tx


class _WakesAtOnce(MemTransaction):
    async def notify(self, wakes: Sequence[NewWake]) -> None:
        self._wakes.notify(wake.channel for wake in wakes)


@mutant("wake-before-commit", kills="WAKE-05")
class WakeBeforeCommit(Transacting):
    kind = _WakesAtOnce


class _WakesOnRollback(MemTransaction):
    async def rollback(self) -> None:
        await super().rollback()
        self._wakes.notify(self._channels)


@mutant("rollback-leaks-a-wake", kills="WAKE-05")
class RollbackLeaksAWake(Transacting):
    kind = _WakesOnRollback


class _WakesFirst(MemTransaction):
    async def commit(self) -> None:
        self._wakes.notify(self._channels)
        self._channels.clear()
        for _ in range(20):
            await asyncio.sleep(0)
        await super().commit()


@mutant("wake-before-the-data", kills="WAKE-05")
class WakeBeforeTheData(Transacting):
    kind = _WakesFirst


# ---------------------------------------------------------------- receivers


@mutant("close-keeps-what-was-pending", kills="WAKE-06")
def close_keeps_what_was_pending(patch: Patch) -> None:
    receive, end = WakeReceiver.recv, WakeReceiver._end

    def keep(receiver: Any) -> None:
        if not receiver._is_ended:
            receiver.kept = receiver._watch._pending
        end(receiver)

    async def recv(receiver: Any) -> Wake | None:
        if receiver._is_ended and receiver.kept:
            receiver.kept -= 1
            return Wake(receiver._channel)
        return await receive(receiver)

    patch.attribute(WakeReceiver, "_end", keep)
    patch.attribute(WakeReceiver, "recv", recv)


@mutant("close-leaves-a-waiter", kills="WAKE-06")
def close_leaves_a_waiter(patch: Patch) -> None:
    def end(watch: _HubWatch, error: Any) -> None:
        watch._ended, watch._error, watch._pending = True, error, 0
        watch._hub.drop(watch)

    patch.attribute(_HubWatch, "end", end)


@mutant("recv-timeout-swallows-close", kills="WAKE-06")
def recv_timeout_swallows_close(patch: Patch) -> None:
    original = WakeReceiver.recv_timeout

    async def recv_timeout(receiver: WakeReceiver, seconds: float) -> Wake | None:
        try:
            return await original(receiver, seconds)
        except Closed:
            return None

    patch.attribute(WakeReceiver, "recv_timeout", recv_timeout)


@mutant("two-tasks-receive", kills="WAKE-06")
def two_tasks_receive(patch: Patch) -> None:
    original = Receiver._begin

    def begin(receiver: Receiver, operation: str) -> bool:
        receiver._is_receiving = False
        return original(receiver, operation)

    patch.attribute(Receiver, "_begin", begin)


@mutant("store-close-leaves-receivers", kills="WAKE-07")
def store_close_leaves_receivers(patch: Patch) -> None:
    async def aclose(engine: MemEngine) -> None:
        engine._state.is_closed = engine._state.is_stirred = True

    patch.attribute(Life, "_track", lambda store, receiver: None)
    patch.attribute(MemEngine, "aclose", aclose)


def _late(receive: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Hand over one turn of the loop after it was taken, so that a cancellation in between loses it."""

    async def recv(*arguments: Any, **keywords: Any) -> Any:
        received = await receive(*arguments, **keywords)
        await asyncio.sleep(0)
        return received

    return recv


@mutant("cancelled-recv-loses-a-wake", kills="WAKE-09")
def cancelled_recv_loses_a_wake(patch: Patch) -> None:
    patch.attribute(WakeReceiver, "recv", _late(WakeReceiver.recv))


@mutant("cancelled-recv-loses-an-event", kills="WAKE-09")
def cancelled_recv_loses_an_event(patch: Patch) -> None:
    patch.attribute(EventReceiver, "recv", _late(EventReceiver.recv))
    patch.attribute(EventReceiver, "recv_page", _late(EventReceiver.recv_page))
