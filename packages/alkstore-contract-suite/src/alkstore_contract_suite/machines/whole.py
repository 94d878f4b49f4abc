"""The machine across all areas: transactions with everything that can be in them, and everything beside them."""

from collections.abc import Callable
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, initialize, precondition, rule

from alkstore_contract_suite.machines.machine import Player, optional
from alkstore_contract_suite.machines.rules import (
    CONSUMERS,
    ENDS,
    HOWS,
    PAYLOADS,
    QUEUES,
    STAMPS,
    STREAMS,
    Timed,
)

__all__ = ["WholeMachine"]


class WholeMachine(Timed):
    """Transactions across all areas, with outboxes, wakes, time, and the ends of stores."""

    areas = ("queue", "stream", "outbox")
    claims: Bundle[str] = Bundle("claims")
    jobs: Bundle[str] = Bundle("jobs")
    ears: Bundle[str] = Bundle("ears")
    BOXES: Final = st.sampled_from(("o", "o", "p"))
    DELIVERIES: Final = st.sampled_from((None, "fails", "fails", "outlives", "settles"))
    CHANNELS: Final = st.sampled_from(("n", "n", "m"))

    def __init__(self, begin: Callable[[], Player]) -> None:
        super().__init__(begin)
        self._is_open = False

    def inside(self, do: str, **arguments: Any) -> bool:
        """Do a step in the open transaction, or in a new one."""
        if not self._is_open:
            self._is_open = self.do("begin")
        return self.do(do, **arguments)

    @initialize(target=claims, stamps=STAMPS)
    def begin_with_a_claim(self, stamps: dict[str, Any]) -> Any:
        self.do("enqueue", queue="q", payloads=["x", None], **stamps)
        self.do("send", outbox="o", payload="m")
        return self.named("claim", "h", queue="q")

    @rule(second=st.booleans())
    def begin(self, second: bool) -> None:
        self._is_open = self.do("begin", on=self.where(second)) or self._is_open

    @precondition(lambda self: self._is_open)
    @rule(lands=st.booleans())
    def commit_or_roll_back(self, lands: bool) -> None:
        self.do("commit" if lands else "rollback")
        self._is_open = False

    @rule(lands=st.booleans(), queue=QUEUES, stream=STREAMS)
    def write_and_end(self, lands: bool, queue: str, stream: str) -> None:
        self.inside("tx-publish", stream=stream, payloads=["x"])
        self.inside("tx-enqueue", queue=queue, payloads=["x"])
        self.do("commit" if lands else "rollback")
        self._is_open = False

    @precondition(lambda self: self.mode in ENDS)
    @rule()
    def end_everything(self) -> None:
        self.do("end", how=ENDS[self.mode])
        self._is_open = False

    @rule(target=jobs, queue=QUEUES, payloads=PAYLOADS, stamps=STAMPS, inside=st.booleans())
    def enqueue(self, queue: str, payloads: list[object], stamps: dict[str, Any], inside: bool) -> Any:
        if inside and not self._is_open:
            self._is_open = self.do("begin")
        do = "tx-enqueue" if inside else "enqueue"
        return self.named(do, "j", queue=queue, payloads=payloads, **stamps)

    @rule(target=claims, queue=QUEUES, count=st.sampled_from((1, 2)))
    def claim(self, queue: str, count: int) -> Any:
        return self.named("claim", "h", queue=queue, count=count)

    @rule(claim=claims, how=HOWS)
    def settle(self, claim: str, how: str) -> None:
        self.do("settle", claim=claim, how=how, error="boom")

    @rule(claim=claims, is_only=st.booleans())
    def ack_inside(self, claim: str, is_only: bool) -> None:
        if is_only:
            self.do("rollback")
            self._is_open = False
        self.inside("tx-ack", claim=claim)

    @rule(outbox=BOXES, payload=st.sampled_from((None, "m")), stamps=STAMPS, inside=st.booleans())
    def send(self, outbox: str, payload: object, stamps: dict[str, Any], inside: bool) -> None:
        if inside:
            self.inside("tx-send", outbox=outbox, payload=payload, **stamps)
        else:
            self.do("send", outbox=outbox, payload=payload, **stamps)

    @rule(outbox=BOXES, how=DELIVERIES, second=st.booleans())
    def deliver(self, outbox: str, how: str | None, second: bool) -> None:
        self.do("deliver", outbox=outbox, how=how, on=self.where(second))

    @rule(stream=STREAMS, payloads=PAYLOADS, key=optional("k"), inside=st.booleans())
    def publish(self, stream: str, payloads: list[object], key: str | None, inside: bool) -> None:
        do = self.inside if inside else self.do
        do("tx-publish" if inside else "publish", stream=stream, payloads=payloads, key=key)

    @rule(stream=STREAMS, offset=st.sampled_from((0, 1, 2)), consumer=optional("c"))
    def read_inside(self, stream: str, offset: int, consumer: str | None) -> None:
        self.inside("tx-read", stream=stream, offset=offset, limit=100, consumer=consumer)

    @rule(stream=STREAMS, consumer=CONSUMERS, offset=st.sampled_from((0, 1, 2, 3)), after=optional(0, 1))
    def save_inside(self, stream: str, consumer: str, offset: int, after: int | None) -> None:
        self.inside("tx-save", stream=stream, consumer=consumer, offset=offset, after=after)

    @rule(stream=STREAMS, consumer=CONSUMERS)
    def ask_inside(self, stream: str, consumer: str) -> None:
        self.inside("tx-where", stream=stream, consumer=consumer)

    @rule(stream=STREAMS, consumer=CONSUMERS, offset=st.sampled_from((1, 2)))
    def save(self, stream: str, consumer: str, offset: int) -> None:
        self.do("save", stream=stream, consumer=consumer, offset=offset)

    @rule(target=ears, channel=CHANNELS, second=st.booleans())
    def listen(self, channel: str, second: bool) -> Any:
        return self.named("listen", "w", channel=channel, on=self.where(second))

    @rule(channel=CHANNELS, inside=st.booleans(), second=st.booleans())
    def notify(self, channel: str, inside: bool, second: bool) -> None:
        if inside:
            self.inside("tx-notify", channel=channel)
        else:
            self.do("notify", channel=channel, on=self.where(second))

    @initialize(target=ears)
    def begin_with_an_ear(self) -> Any:
        return self.named("listen", "w", channel="n")

    @rule(ear=ears, channel=CHANNELS)
    def hear_what_is_notified_inside(self, ear: str, channel: str) -> None:
        self.inside("tx-notify", channel=channel)
        self.do("hear", ear=ear)

    @rule(ear=ears)
    def hear(self, ear: str) -> None:
        self.do("hear", ear=ear)

    @rule(ear=consumes(ears))
    def deafen(self, ear: str) -> None:
        self.do("deafen", ear=ear)
