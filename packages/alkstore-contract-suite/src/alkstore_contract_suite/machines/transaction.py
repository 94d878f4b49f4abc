"""Steps in a transaction."""

from alkstore_contract_suite.machines.outbox import mail
from alkstore_contract_suite.machines.queue import new_job, options, seen
from alkstore_contract_suite.machines.stage import Absent, Open, Stage, operation
from alkstore_contract_suite.machines.stream import events
from alkstore_contract_suite.machines.trace import Step
from alkstore_contract_suite.model.allowed import Raised, just, one_of, raising
from alkstore_contract_suite.model.row import Claim
from alkstore_contract_suite.model.world import View


def _open(stage: Stage) -> Open:
    if stage.tx is None:
        raise Absent("no transaction is open")
    return stage.tx


@operation("begin")
async def _begin(stage: Stage, step: Step) -> bool:
    on = step.get("on", "a")
    store = await stage.store(on)
    if stage.tx is not None:
        if stage.tx.on != on:
            raise Absent("a transaction beside another store's")
        got = await stage.answer(store.begin_tx())
        stage.check(raising("InsideTransaction"), got, "TX-07", "a second begin")
        return False
    tx = await store.begin_tx()
    stage.tx = Open(tx, View(stage.world), on, step.get("as", ""))
    return True


@operation("commit")
async def _commit(stage: Stage, step: Step) -> bool:
    opened = _open(stage)
    await stage.hold(just(None), opened.tx.commit(), "TX-01")
    opened.view.land(stage.world)
    stage.ears.notify(opened.view.notified)
    stage.tx = None
    await _is_closed(stage, opened)
    return False


@operation("rollback")
async def _rollback(stage: Stage, step: Step) -> bool:
    opened = _open(stage)
    await stage.hold(just(None), opened.tx.rollback(), "TX-03")
    for claim in opened.acked:
        claim.is_consumed = False
    stage.tx = None
    await _is_closed(stage, opened)
    return False


async def _is_closed(stage: Stage, opened: Open) -> None:
    got = await stage.answer(opened.tx.notify("n"))
    stage.check(raising("Closed"), got, "TX-04", "a transaction that has ended")


@operation("tx-enqueue")
async def _enqueue(stage: Stage, step: Step) -> bool:
    opened, queue, payloads = _open(stage), step["queue"], step["payloads"]
    stage.queues[queue] = None
    jobs = opened.view.jobs
    allowed = jobs.enqueue(stage.now, [new_job(queue, step, payload) for payload in payloads])
    call = opened.tx.enqueue_batch(queue, payloads, **options(step))
    ids = await stage.hold(allowed, call, "Q-22, Q-23, TX-01")
    if not ids:
        return False
    own = await opened.tx.get_job(queue, ids[-1])
    stage.check(jobs.show(ids[-1], queue), own and seen(own), "Q-23, TX-02", "its own job")
    stage.give(step, ids[-1], queue, await stage.store(opened.on))
    return True


@operation("tx-send")
async def _send(stage: Stage, step: Step) -> bool:
    opened, name = _open(stage), step["outbox"]
    stage.outboxes[name] = None
    allowed = opened.view.jobs.enqueue(stage.now, [mail(name, step, step.get("payload"))])
    call = opened.tx.outbox_enqueue(name, step.get("payload"), **options(step))
    await stage.hold(allowed, call, "OBX-02, TX-01", lambda id: [id])
    return False


@operation("tx-ack")
async def _ack(stage: Stage, step: Step) -> bool:
    opened, named = _open(stage), stage.take(step["claim"])
    if named.on != opened.on:
        raise Absent("a handle of another store")
    claim: Claim = named.model
    if claim.is_consumed:
        await stage.hold(raising("HandleConsumed"), opened.tx.ack(named.real), "Q-15, Q-23")
        return False
    if not opened.view.jobs.is_live(stage.now, claim):
        await stage.hold(raising("ClaimLost"), opened.tx.ack(named.real), "Q-23")
        # Whether the refused ack used the handle up the contract does not say.
        del stage.given[step["claim"]]
        return False
    landing = opened.view.jobs.ack(stage.now, claim)
    await stage.hold(one_of(None), opened.tx.ack(named.real), "Q-23")
    landing.then(True)
    opened.acked.append(claim)
    return False


@operation("tx-publish")
async def _publish(stage: Stage, step: Step) -> bool:
    opened, name, payloads = _open(stage), step["stream"], step["payloads"]
    stage.streams[name] = None
    streams = opened.view.streams
    allowed = streams[name].publish(stage.now, payloads, step.get("key"), is_first=streams.is_quiet(name))
    call = opened.tx.publish_batch(name, payloads, key=step.get("key"))
    await stage.hold(allowed, call, "STR-05, STR-14, TX-01")
    if payloads:
        streams.note(name)
    return False


@operation("tx-read")
async def _read(stage: Stage, step: Step) -> bool:
    opened, name, limit = _open(stage), step["stream"], step["limit"]
    stage.streams[name] = None
    known = opened.view.streams[name]
    if (consumer := step.get("consumer")) is not None:
        opened.view.streams.note(name)
        position = known.position(consumer)
        call = opened.tx.read_from_consumer(name, consumer, limit)
        await stage.hold(just(known.since(position, limit)), call, "STR-12", events)
        opened.view.positions[name, consumer] = position
    else:
        offset = step["offset"]
        await stage.hold(
            just(known.since(offset, limit)), opened.tx.read_since(name, offset, limit), "STR-12", events
        )
    return False


@operation("tx-save")
async def _save(stage: Stage, step: Step) -> bool:
    opened, name, consumer = _open(stage), step["stream"], step["consumer"]
    stage.streams[name] = None
    known, offset = opened.view.streams[name], step["offset"]
    opened.view.streams.note(name)
    after = step.get("after", opened.view.positions.get((name, consumer)))
    allowed = known.save_after(consumer, offset, after)
    call = opened.tx.save_offset(name, consumer, offset, after=step.get("after"))
    got = await stage.hold(allowed, call, "STR-12")
    if not isinstance(got, Raised):
        opened.view.positions[name, consumer] = offset
    return False


@operation("tx-where")
async def _where(stage: Stage, step: Step) -> bool:
    opened, name, consumer = _open(stage), step["stream"], step["consumer"]
    position = opened.view.streams[name].position(consumer)
    await stage.hold(just(position), opened.tx.get_offset(name, consumer), "STR-12")
    opened.view.positions[name, consumer] = position
    return False


@operation("tx-notify")
async def _notify(stage: Stage, step: Step) -> bool:
    opened = _open(stage)
    await stage.hold(just(None), opened.tx.notify(step["channel"]), "WAKE-05")
    opened.view.notified.append(step["channel"])
    return False
