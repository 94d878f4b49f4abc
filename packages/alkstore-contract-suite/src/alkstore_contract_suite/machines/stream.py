"""Steps on streams."""

from typing import Any, Final

from alkstore import EventReceiver, Store, StreamEvent
from alkstore_contract_suite.machines.stage import Stage, look, micros, operation
from alkstore_contract_suite.machines.trace import Step
from alkstore_contract_suite.model.allowed import just
from alkstore_contract_suite.model.stream import Event

__all__ = ["event", "events"]

EVERYTHING: Final = 100_000

Place = list[Any]
"""Where a receiver of events is: its stream, and the last offset that it gave."""


def event(found: StreamEvent | None) -> Event | None:
    """Give an event in the model's words."""
    return None if found is None else Event(found.offset, found.key, found.payload, micros(found.created_at))


def events(found: list[StreamEvent]) -> list[Event | None]:
    """Give events in the model's words."""
    return [event(each) for each in found]


@operation("publish")
async def _publish(stage: Stage, step: Step) -> bool:
    name, on, payloads, key = step["stream"], step.get("on", "a"), step["payloads"], step.get("key")
    store = await stage.store(on)
    stage.streams[name] = None
    streams = stage.world.streams
    allowed = streams[name].publish(stage.now, payloads, key, is_first=streams.is_quiet(name))
    allowed = stage.writes(step, on, allowed)
    if len(payloads) == 1:
        call: Any = store.stream(name).publish(payloads[0], key=key)
        await stage.hold(allowed, call, "STR-01", lambda offset: [offset])
    else:
        await stage.hold(allowed, store.stream(name).publish_batch(payloads, key=key), "STR-14")
    if stage.tx is None and payloads:
        streams.note(name)
    return False


@operation("read")
async def _read(stage: Stage, step: Step) -> bool:
    name, limit = step["stream"], step["limit"]
    store = await stage.store(step.get("on", "a"))
    stage.streams[name] = None
    stream, known = store.stream(name), stage.world.streams[name]
    if (consumer := step.get("consumer")) is not None:
        expected = known.since(known.position(consumer), limit)
        await stage.hold(just(expected), stream.read_from_consumer(consumer, limit), "STR-07", events)
    else:
        offset = _place(stage, step)
        await stage.hold(just(known.since(offset, limit)), stream.read_since(offset, limit), "STR-03", events)
    return False


@operation("save")
async def _save(stage: Stage, step: Step) -> bool:
    name, consumer, on, offset = step["stream"], step["consumer"], step.get("on", "a"), _place(stage, step)
    store = await stage.store(on)
    stage.streams[name] = None
    stream, known = store.stream(name), stage.world.streams[name]
    stage.world.streams.note(name)
    if step.get("how") == "reset":
        allowed = stage.writes(step, on, known.reset(consumer, offset))
        await stage.hold(allowed, stream.reset_offset(consumer, offset), "STR-06")
    else:
        allowed = stage.writes(step, on, known.save(consumer, offset))
        await stage.hold(allowed, stream.save_offset(consumer, offset), "STR-06")
    return False


@operation("trim")
async def _trim(stage: Stage, step: Step) -> bool:
    name, on, horizon = step["stream"], step.get("on", "a"), _place(stage, step)
    store = await stage.store(on)
    stage.streams[name] = None
    allowed = stage.writes(step, on, stage.world.streams[name].trim(horizon))
    await stage.hold(allowed, store.stream(name).trim_to(horizon), "STR-11")
    return False


def _place(stage: Stage, step: Step) -> int:
    """Give the offset that a step means: ``nth`` of the events that ever were, and ``beside`` it."""
    if "offset" in step:
        return int(step["offset"])
    known = stage.world.streams[step["stream"]].events
    return (known[step["nth"] % len(known)].offset if known else 0) + int(step.get("beside", 0))


# ---------------------------------------------------------------- receivers


@operation("subscribe")
async def _subscribe(stage: Stage, step: Step) -> bool:
    name, consumer = step["stream"], step.get("consumer")
    store = await stage.store(step.get("on", "a"))
    stage.streams[name] = None
    known = stage.world.streams[name]
    after = _place(stage, step) if "nth" in step else None
    receiver = await store.stream(name).subscribe(consumer, after=after)
    start = after if after is not None else known.last if consumer is None else known.position(consumer)
    stage.give(step, receiver, [name, start], store)
    return True


@operation("receive")
async def _receive(stage: Stage, step: Step) -> bool:
    named = stage.take(step["receiver"])
    receiver: EventReceiver = named.real
    place: Place = named.model
    known = stage.world.streams[place[0]]
    got = await stage.hold(known.next_after(place[1]), receiver.try_recv(), "STR-08, STR-11", event)
    if got is not None:
        place[1] = got.offset
    return False


@operation("leave")
async def _leave(stage: Stage, step: Step) -> bool:
    named = stage.take(step["receiver"])
    await named.real.aclose()
    del stage.given[step["receiver"]]
    return False


@look("stream")
async def _look(stage: Stage, store: Store) -> None:
    for name in stage.streams:
        stream, known = store.stream(name), stage.world.streams[name]
        found = await stream.read_since(-1, EVERYTHING)
        stage.same(events(found), known.since(0, EVERYTHING), "STR-01, STR-11", f"all events of {name}")
        stage.same(await stream.head(), known.last, "ADM-01", f"the head of {name}")
        moved = {who: where for who, where in (await stream.consumers()).items() if where != 0}
        stage.same(moved, known.moved(), "STR-06", f"the consumers of {name}")
    stage.check(stage.world.streams.listed(), await store.streams(), "ADM-01", "the list of streams")
