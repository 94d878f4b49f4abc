"""The machines of one area each: which steps may be drawn, and which of what was given they take. Old handles stay in their bundles."""

from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, initialize, precondition, rule

from alkstore_contract_suite.machines.machine import BESIDE, STEPS, Machine, optional

__all__ = [
    "CONSUMERS",
    "ENDS",
    "HOWS",
    "PAYLOADS",
    "QUEUES",
    "STAMPS",
    "STREAMS",
    "LockMachine",
    "QueueMachine",
    "ScheduleMachine",
    "StreamMachine",
    "Timed",
]

QUEUES: Final = st.sampled_from(("q", "r"))
SECONDS: Final = (0.000001, 0.5, 1, 2, 5)
PAYLOADS: Final = st.lists(st.sampled_from((None, 1, "x", {"k": [1.5]})), min_size=1, max_size=3)
SPANS: Final = st.sampled_from(SECONDS)
CONSUMERS: Final = st.sampled_from(("c", "d"))
STREAMS: Final = st.sampled_from(("s", "s", "t"))
STAMPS: Final = st.fixed_dictionaries(
    {
        "priority": optional(1, -1),
        "delay": optional(*SECONDS),
        "visibility_timeout": optional(1, 2, 5),
        "max_attempts": optional(1, 1, 2),
        "base_delay": optional(0, 1),
        "expires": optional(1, 2, 5),
    }
)
"""Options of an enqueue."""

HOWS: Final = st.sampled_from(("ack", "retry", "retry", "fail", "release", "heartbeat", "heartbeat"))
ERRORS: Final = st.sampled_from(("boom", ""))
NTH: Final = st.sampled_from((0, 0, 1, 2, 3))


class Timed(Machine):
    """Time moves: by steps, or to where something happens."""

    @rule(micros=STEPS)
    def advance(self, micros: int) -> None:
        self.do("advance", micros=micros)

    @rule(nth=NTH, beside=BESIDE)
    def advance_to_an_edge(self, nth: int, beside: int) -> None:
        self.do("advance", nth=nth, beside=beside)


ENDS: Final = {"reopen": "reopen", "crash-kill": "kill", "crash-drop": "drop"}
"""How stores end between steps, by the mode."""


class Ending(Timed):
    """Stores end between steps, as the mode says."""

    @precondition(lambda self: self.mode in ENDS)
    @rule()
    def end(self) -> None:
        self.do("end", how=ENDS[self.mode])


class QueueMachine(Ending):
    """Jobs: enqueued, claimed, settled by live and by stale handles, swept, cancelled, redriven, purged."""

    areas = ("queue",)
    claims: Bundle[str] = Bundle("claims")
    jobs: Bundle[str] = Bundle("jobs")

    # Hypothesis leaves some rules out of each run. Those that a run is nothing without stand here twice, or come first.

    @initialize(target=claims, payloads=PAYLOADS)
    def begin_with_a_claim(self, payloads: list[object]) -> Any:
        self.do("enqueue", queue="q", payloads=payloads)
        return self.named("claim", "h", queue="q")

    @initialize(target=jobs, stamps=STAMPS)
    def begin_with_a_job(self, stamps: dict[str, Any]) -> Any:
        return self.named("enqueue", "j", queue="q", payloads=["x"], **stamps)

    @rule(target=jobs, queue=QUEUES, payloads=PAYLOADS, stamps=STAMPS, second=st.booleans())
    def enqueue(self, queue: str, payloads: list[object], stamps: dict[str, Any], second: bool) -> Any:
        return self.named("enqueue", "j", queue=queue, payloads=payloads, on=self.where(second), **stamps)

    @rule(target=claims, queue=QUEUES, count=st.sampled_from((1, 2, 5)), second=st.booleans())
    def claim(self, queue: str, count: int, second: bool) -> Any:
        return self.named("claim", "h", queue=queue, count=count, on=self.where(second))

    @rule(target=claims, queue=QUEUES, nth=NTH)
    def claim_what_lapsed(self, queue: str, nth: int) -> Any:
        self.do("advance", nth=nth)
        return self.named("claim", "h", queue=queue, worker="v")

    @rule(target=claims, claim=claims, queue=QUEUES, how=st.sampled_from(("release", "retry")))
    def claim_what_was_given_back(self, claim: str, queue: str, how: str) -> Any:
        self.do("settle", claim=claim, how=how, error="boom", delay=0)
        return self.named("claim", "h", queue=queue)

    @rule(claim=claims, how=HOWS, error=ERRORS, delay=optional(0, 1), window=optional(*SECONDS))
    def settle(self, claim: str, how: str, error: str, delay: float | None, window: float | None) -> None:
        self.do("settle", claim=claim, how=how, error=error, delay=delay, window=window)

    @rule(claim=claims, how=HOWS, nth=NTH, beside=BESIDE)
    def settle_at_an_edge(self, claim: str, how: str, nth: int, beside: int) -> None:
        self.do("advance", nth=nth, beside=beside)
        self.do("settle", claim=claim, how=how, error="boom")

    @rule(target=claims, claim=claims, how=HOWS, queue=QUEUES)
    def settle_when_somebody_else_has_it(self, claim: str, how: str, queue: str) -> Any:
        self.do("settle", claim=claim, how="heartbeat", window=0.000001)
        self.do("advance", micros=1)
        found = self.named("claim", "h", queue=queue, count=5)
        self.do("settle", claim=claim, how=how, error="boom")
        return found

    @rule(queue=QUEUES, older_than=st.sampled_from((None, None, -1, 1, 2)), second=st.booleans())
    def sweep_or_purge(self, queue: str, older_than: float | None, second: bool) -> None:
        do = "sweep" if older_than is None else "purge"
        self.do(do, queue=queue, older_than=older_than, on=self.where(second))

    @rule(one=jobs, other=jobs, queue=QUEUES, cancels=st.booleans())
    def cancel_or_redrive(self, one: str, other: str, queue: str, cancels: bool) -> None:
        if cancels:
            self.do("cancel", job=one, queue=queue)
        else:
            self.do("redrive", jobs=sorted({one, other}), queue=queue)


class StreamMachine(Ending):
    """Events: published, read, trimmed; positions that are saved; receivers at every place."""

    areas = ("stream",)
    receivers: Bundle[str] = Bundle("receivers")

    @initialize(payloads=PAYLOADS)
    def begin_with_events(self, payloads: list[object]) -> None:
        self.do("publish", stream="s", payloads=payloads)

    @rule(stream=STREAMS, payloads=PAYLOADS, key=optional("k"), second=st.booleans())
    def publish(self, stream: str, payloads: list[object], key: str | None, second: bool) -> None:
        self.do("publish", stream=stream, payloads=payloads, key=key, on=self.where(second))

    @rule(stream=STREAMS, nth=NTH, beside=BESIDE, limit=st.sampled_from((1, 2, 100)), consumer=optional("c"))
    def read(self, stream: str, nth: int, beside: int, limit: int, consumer: str | None) -> None:
        self.do("read", stream=stream, nth=nth, beside=beside, limit=limit, consumer=consumer)

    @rule(
        stream=STREAMS,
        consumer=CONSUMERS,
        nth=NTH,
        beside=BESIDE,
        how=optional("reset"),
        second=st.booleans(),
    )
    def save(self, stream: str, consumer: str, nth: int, beside: int, how: str | None, second: bool) -> None:
        self.do(
            "save", stream=stream, consumer=consumer, nth=nth, beside=beside, how=how, on=self.where(second)
        )

    @rule(stream=STREAMS, nth=NTH, beside=BESIDE)
    def trim(self, stream: str, nth: int, beside: int) -> None:
        self.do("trim", stream=stream, nth=nth, beside=beside)

    @rule(stream=STREAMS, horizon=st.sampled_from((2**63 - 1, -(2**63))))
    def trim_at_an_end(self, stream: str, horizon: int) -> None:
        self.do("trim", stream=stream, offset=horizon)

    @rule(
        target=receivers,
        stream=STREAMS,
        consumer=optional("c"),
        nth=optional(0, 1, 3),
        beside=BESIDE,
        second=st.booleans(),
    )
    def subscribe(self, stream: str, consumer: str | None, nth: int | None, beside: int, second: bool) -> Any:
        return self.named(
            "subscribe", "e", stream=stream, consumer=consumer, nth=nth, beside=beside, on=self.where(second)
        )

    @rule(receiver=receivers)
    def receive(self, receiver: str) -> None:
        self.do("receive", receiver=receiver)

    @rule(receiver=consumes(receivers))
    def leave(self, receiver: str) -> None:
        self.do("leave", receiver=receiver)


class LockMachine(Ending):
    """Locks: taken, renewed and freed by holders and by those who were."""

    areas = ("lock",)
    holders: Bundle[str] = Bundle("holders")

    @initialize(target=holders, ttl=SPANS)
    def begin_with_a_holder(self, ttl: float) -> Any:
        return self.named("take", "l", lock="l", ttl=ttl)

    @rule(target=holders, lock=st.sampled_from(("l", "l", "m")), ttl=SPANS, second=st.booleans())
    def take(self, lock: str, ttl: float, second: bool) -> Any:
        return self.named("take", "l", lock=lock, ttl=ttl, on=self.where(second))

    @rule(target=holders, lock=st.sampled_from(("l", "l", "m")), ttl=SPANS, nth=NTH)
    def take_what_lapsed(self, lock: str, ttl: float, nth: int) -> Any:
        self.do("advance", nth=nth)
        return self.named("take", "l", lock=lock, ttl=ttl)

    @rule(holder=holders, ttl=SPANS)
    def renew(self, holder: str, ttl: float) -> None:
        self.do("renew", holder=holder, ttl=ttl)

    @rule(holder=holders)
    def free(self, holder: str) -> None:
        self.do("free", holder=holder)

    @rule(target=holders, holder=holders, lock=st.sampled_from(("l", "l", "m")), renews=st.booleans())
    def use_when_somebody_else_has_it(self, holder: str, lock: str, renews: bool) -> Any:
        self.do("renew", holder=holder, ttl=0.000001)
        self.do("advance", micros=1)
        found = self.named("take", "l", lock=lock, ttl=5)
        self.do("renew" if renews else "free", holder=holder, ttl=2 if renews else None)
        return found

    @rule(holder=holders, ttl=optional(*SECONDS), nth=NTH, beside=BESIDE)
    def renew_or_free_at_an_edge(self, holder: str, ttl: float | None, nth: int, beside: int) -> None:
        self.do("advance", nth=nth, beside=beside)
        self.do("free" if ttl is None else "renew", holder=holder, ttl=ttl)


class ScheduleMachine(Ending):
    """Schedules: registered, changed, removed and fired, with time going both ways."""

    areas = ("schedule", "queue")
    NAMES: Final = st.sampled_from(("x", "y"))

    @initialize(anchor=optional(-3, 1.5))
    def begin_with_a_schedule(self, anchor: float | None) -> None:
        self.do("schedule", schedule="x", spec="@every 1s", queue="q", anchor=anchor, expires=1)

    @rule(
        schedule=NAMES,
        spec=st.sampled_from(("@every 1s", "@every 2s", "@every 1m")),
        queue=QUEUES,
        anchor=optional(-3, 0, 1.5),
        priority=optional(1),
        second=st.booleans(),
    )
    def schedule(
        self, schedule: str, spec: str, queue: str, anchor: float | None, priority: int | None, second: bool
    ) -> None:
        given = {"spec": spec, "queue": queue, "anchor": anchor, "priority": priority, "expires": 1}
        self.do("schedule", schedule=schedule, on=self.where(second), **given)

    @rule(schedule=NAMES, comes_again=st.booleans())
    def unschedule(self, schedule: str, comes_again: bool) -> None:
        self.do("unschedule", schedule=schedule)
        if comes_again:
            self.do("schedule", schedule=schedule, spec="@every 1s", queue="q", expires=1)

    @rule(second=st.booleans())
    def tick(self, second: bool) -> None:
        self.do("tick", on=self.where(second))

    @rule(nth=NTH, beside=BESIDE)
    def tick_at_an_edge(self, nth: int, beside: int) -> None:
        self.do("advance", nth=nth, beside=beside)
        self.do("tick")

    @rule(micros=STEPS)
    def tick_after_a_while(self, micros: int) -> None:
        # Hundreds of jobs would be looked at after every further step.
        for queue in ("q", "r"):
            self.do("sweep", queue=queue)
            self.do("purge", queue=queue, older_than=-1)
        self.do("advance", micros=micros)
        self.do("tick")
