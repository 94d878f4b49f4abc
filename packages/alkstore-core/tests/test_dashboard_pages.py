"""What the dashboard shows: each page asked for as a browser does, without scripts."""

import asyncio
import datetime as dt
import re
from collections.abc import AsyncIterator

import pytest
from dashboards import HOSTILE, Shown, client_of, shown
from fastapi import FastAPI
from faulty import turn

import alkstore
from alkstore import dashboard
from alkstore.errors import InvalidArgument


@pytest.fixture
async def board() -> AsyncIterator[Shown]:
    async with shown() as found:
        yield found


@pytest.fixture
async def writable() -> AsyncIterator[Shown]:
    async with shown(write=True) as found:
        yield found


async def test_queues_and_outboxes_are_counted_with_their_oldest_job(board: Shown) -> None:
    await board.store.queue("mail").enqueue_batch(range(1_234))
    await board.store.queue("mail").enqueue(1, delay=60)
    await board.store.outbox("hooks").enqueue(1)
    await board.dead("bills", "no card")
    await board.clock.advance(30)

    words = await board.words("/")

    assert "Ready 1,235 Processing 0 Delayed 1 Dead 1 Oldest ready 30.0 s" in words
    assert re.search(r"mail 1,234 0 1 0 30\.0 s", words)
    assert re.search(r"bills 0 0 0 1 dead in bills", words)
    assert re.search(r"hooks outbox 1 0 0 0 30\.0 s", words)


async def test_an_empty_storage_says_what_will_be_there(board: Shown) -> None:
    assert "No queue has jobs." in await board.words("/")
    assert "No stream has events." in await board.words("/streams")
    assert "There are no schedules." in await board.words("/schedules")
    assert "No lock is held." in await board.words("/locks")


async def test_a_queue_that_has_been_emptied_stays_to_be_seen(board: Shown) -> None:
    await board.store.queue("mail").enqueue(1)
    await board.page("/")
    handle = await board.store.queue("mail").claim_one()
    assert handle is not None
    await handle.ack()

    assert re.search(r"mail 0 0 0 0 –", await board.words("/"))


async def test_rates_are_those_of_the_last_minute_and_of_this_process(board: Shown) -> None:
    queue = board.store.queue("mail")
    await queue.enqueue_batch(range(10))
    await board.page("/")
    await board.clock.advance(30)
    await queue.enqueue_batch(range(60))
    for handle in await queue.claim_batch(30):
        await handle.ack()

    words = await board.words("/")
    page = await board.page("/queue?name=mail")

    assert "+1/s 2/s 1/s" in words
    assert "Jobs a second, in this process, now: enqueued 2, done 1, failed 0" in page


async def test_without_a_witness_the_change_of_the_backlog_is_shown() -> None:
    async with shown(witness=None) as board:
        await board.store.queue("mail").enqueue_batch(range(90))
        await board.page("/")
        await board.clock.advance(30)
        for handle in await board.store.queue("mail").claim_batch(15):
            await handle.ack()

        words = await board.words("/queue?name=mail")
        page = await board.page("/queue?name=mail")

    assert "Change −30/min Empty in about 2 min 30 s" in words
    assert "Change of the backlog, jobs a second, now: change -0.50" in page


async def test_jobs_are_listed_by_state_error_and_page(board: Shown) -> None:
    await board.store.queue("mail").enqueue_batch([{"n": n} for n in range(60)])
    await board.dead("mail", "Traceback\n  File …\nValueError: no route", "refused")

    first, second = await board.words("/queue?name=mail"), await board.words("/queue?name=mail&after=50")
    dead = await board.words("/queue?name=mail&state=dead&error=route")

    assert "50 jobs by id" in first
    assert "Next 50" in first
    assert "12 jobs by id" in second
    assert "1 job by id" in dead
    assert "ValueError: no route" in dead
    assert "File …" not in dead


async def test_a_job_is_shown_whole_or_its_beginning(board: Shown) -> None:
    queue = board.store.queue("mail")
    small = await queue.enqueue({"a": [1]}, headers={"tenant": "acme"}, priority=7)
    large = await queue.enqueue("ä" * 100_000)
    (dead,) = await board.dead("mail", "first line\nlast line")

    page = await board.page(f"/job?name=mail&id={small}")
    cut = await board.page(f"/job?name=mail&id={large}")

    assert "{\n  &#34;a&#34;: [\n    1\n  ]\n}" in page
    assert "tenant" in page
    assert "200,002 bytes, of which this is the beginning" in cut
    assert cut.count("ä") == 19_999  # and the quotation mark before them
    assert "first line\nlast line</pre>" in await board.page(f"/job?name=mail&id={dead}")
    assert "There is no such job" in await board.words("/job?name=mail&id=999", 404)


async def test_what_was_stored_is_shown_and_never_obeyed(board: Shown) -> None:
    queue = board.store.queue(HOSTILE)
    id = await queue.enqueue({"html": HOSTILE}, headers={HOSTILE: HOSTILE}, priority=1)
    handle = await queue.claim_one(worker_id=HOSTILE)
    assert handle is not None
    await board.store.outbox(HOSTILE).enqueue(HOSTILE)
    await board.store.stream(HOSTILE).publish(1)
    await board.store.stream(HOSTILE).save_offset(HOSTILE, 1)
    await board.store.schedule(HOSTILE, "@every 1h", HOSTILE, HOSTILE)
    _ = await board.store.try_lock(HOSTILE, ttl=60)
    name = str(client_of(None).build_request("GET", "/", params={"name": HOSTILE}).url.query, "ascii")
    paths = ["/", "/streams", "/schedules", "/locks", f"/queue?{name}", f"/job?{name}&id={id}"]
    pages = [await board.page(path) for path in paths]
    await handle.fail(HOSTILE)
    pages += [await board.page(path) for path in (f"/queue?{name}&state=dead", f"/job?{name}&id={id}")]
    pages += [await board.page(f"/queue?name=q&error={name}"), await board.page(f"/%3Cscript%3E?{name}", 404)]

    for page in pages:
        assert page.count("<script>") == 1  # ours
        page = re.sub(r'value="[^"]*"', "", page)  # a form has to give back what it was given
        assert "alert('x')" not in page
        assert "\x1b" not in page
        assert "\u202e" not in page
    assert all("alert(" in page for page in pages[:8])


async def test_streams_show_how_far_behind_their_consumers_are(board: Shown) -> None:
    await board.store.stream("orders").publish_batch(range(500))
    await board.store.stream("orders").save_offset("mailer", 480)
    await board.store.stream("orders").save_offset("search", 600)
    await board.store.stream("audit").publish(1)

    words = await board.words("/streams")

    assert "audit 1 nobody has saved a position" in words
    assert "orders 500 mailer 480 20 – search 600 0 –" in words


async def test_schedules_show_their_next_fire_and_whether_anybody_leads(board: Shown) -> None:
    await board.store.schedule("nightly", "@every 1d", "reports", {"format": "pdf"})
    await board.store.schedule("often", "@every 1m", "poll", None)
    await board.clock.advance(300)

    before, queues = await board.words("/schedules"), await board.words("/")
    stop = alkstore.StopToken()
    leading = asyncio.create_task(board.store.run_schedules(stop))
    await turn()
    during = await board.words("/schedules")
    stop.cancel()
    await leading

    assert "nightly @every 1d in 23 h 55 min reports" in before
    assert "often @every 1m late: 4 min 0 s ago" in before
    assert "Nobody leads" in before
    assert "Nobody leads the 2 schedules" in queues
    assert "A runner leads; its lease ends in 10 s" in during


async def test_locks_are_shown_with_their_ends(board: Shown) -> None:
    lock = await board.store.try_lock("report", ttl=90)
    assert lock is not None

    assert f"report {lock.fence} in 1 min 30 s" in await board.words("/locks")


async def test_a_storage_that_is_away_is_said_and_what_was_seen_stays(board: Shown) -> None:
    await board.store.queue("mail").enqueue_batch(range(7))
    await board.page("/")
    await board.store.aclose()

    words = await board.words("/")

    assert "The storage does not answer. store is closed What stands here is older." in words
    assert "Ready 7" in words
    assert "The storage does not answer" in await board.words("/queue?name=mail", 503)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/queue?name=", "must not be blank"),
        ("/queue?name=__alkstore_x", "__alkstore_x"),
        ("/queue?name=q&kind=topic", "kind must be queue or outbox"),
        ("/queue?name=q&state=lost", "state must be one of"),
        ("/queue?name=q&span=1y", "span must be one of"),
        ("/queue?name=q&after=x", "after must be a whole number"),
        ("/job?name=q&id=-", "id must be a whole number"),
    ],
)
async def test_what_is_no_name_or_number_is_refused(board: Shown, path: str, reason: str) -> None:
    assert reason in await board.words(path, 400)


# ---------------------------------------------------------------- changes


async def test_dead_jobs_are_redriven_after_a_question(writable: Shown) -> None:
    ids = await writable.dead("q", "no route", "refused", "no route")
    path = f"/confirm?name=q&action=redrive&id={ids[1]}"

    question = await writable.words(path)
    fields = {"proof": await writable.proof(), "action": "redrive", "name": "q"}
    answer = await writable.post("/change", fields | {"id": [str(ids[1])]})
    by_error = await writable.post("/change", fields | {"error": "no route"})
    told = await writable.words(by_error.headers["location"])

    assert "Redrive 1 dead job?" in question
    assert "refused" in question
    assert answer.headers["location"] == "/queue?kind=queue&name=q&state=dead&done=redriven&count=1"
    assert "2 jobs made pending again." in told
    assert (await writable.store.queue("q").stats()).ready == 3


async def test_dead_jobs_are_purged_by_age_after_a_question(writable: Shown) -> None:
    await writable.dead("q", "old")
    await writable.clock.advance(7_200)
    await writable.dead("q", "new")
    fields = {"proof": await writable.proof(), "action": "purge", "name": "q"}

    question = await writable.words("/confirm?name=q&action=purge&older_than=3600")
    everything = await writable.words("/confirm?name=q&action=purge&older_than=0")
    answer = await writable.post("/change", fields | {"older_than": "3600"})
    left = await writable.store.queue("q").list()

    assert "All that died more than 1 h 0 min ago are deleted" in question
    assert "Purge 2 dead jobs? All dead jobs of this queue are deleted" in everything
    assert answer.headers["location"].endswith("done=purged&count=1")
    assert [job.last_error for job in left] == ["new"]


async def test_nothing_can_be_changed_by_default(board: Shown) -> None:
    await board.dead("q", "no route")

    pages = [await board.page(path) for path in ("/", "/queue?name=q&state=dead", "/job?name=q&id=1")]
    answer = await board.post("/change", {"action": "purge", "name": "q", "proof": "x"})

    assert all("read-only" in page and "/confirm" not in page for page in pages)
    assert answer.status_code == 404
    assert "only looks" in await board.words("/confirm?name=q&action=purge", 404)
    assert (await board.store.queue("q").stats()).dead == 1


@pytest.mark.parametrize(
    "query",
    ["action=drop", "action=purge&older_than=-1", "action=purge&id=1", "action=purge&error=x",
     "action=redrive&" + "&".join(f"id={n}" for n in range(201))],
)  # fmt: skip
async def test_what_cannot_be_done_is_not_asked_about(writable: Shown, query: str) -> None:
    assert (await writable.client.get(f"/confirm?name=q&{query}")).status_code == 400


# ---------------------------------------------------------------- mounting


async def test_it_can_be_mounted_in_any_application() -> None:
    async with shown(write=True, token="a token of enough letters") as board:
        api = FastAPI()
        api.mount("/ops/alkstore", board.made)
        await board.dead("q", "no route")
        async with client_of(api) as client:
            origin = {"origin": "http://localhost"}
            refused = await client.get("/ops/alkstore/queue?name=q")
            fields = {"token": "a token of enough letters", "next": "/ops/alkstore/queue?name=q"}
            entered = await client.post("/ops/alkstore/login", data=fields, headers=origin)
            page = await client.get(entered.headers["location"])
            missing = await client.get("/ops/alkstore/nope")

    assert refused.headers["location"] == "/ops/alkstore/login?next=%2Fops%2Falkstore%2Fqueue%3Fname%3Dq"
    assert entered.headers["location"] == "/ops/alkstore/queue?name=q"
    assert "Path=/ops/alkstore;" in entered.headers["set-cookie"]
    links = re.findall(r'(?:href|action)="([^"#][^"]*)"', page.text)
    assert {link for link in links if not link.startswith(("/ops/alkstore/", "data:"))} == set()
    assert missing.status_code == 404
    assert "content-security-policy" in missing.headers


async def test_what_cannot_be_a_dashboard_is_refused_at_once() -> None:
    async with alkstore.open("mem://") as store:
        for given in ({"token": "short"}, {"token": None, "hosts": "x"}, {"token": None, "interval": 0}):
            with pytest.raises(InvalidArgument):
                dashboard.app(store, **given)
    with pytest.raises(InvalidArgument):
        dashboard.app("mem://", token=None)  # type: ignore[arg-type]


def test_instants_are_told_from_now() -> None:
    from alkstore.dashboard.page import rendered

    page = rendered("locks.html", _context(dt.datetime(2026, 1, 1, tzinfo=dt.UTC)))

    assert "in 2 min 5 s" in page


def _context(now: dt.datetime) -> dict[str, object]:
    from alkstore.dashboard.look import Seen
    from alkstore.values import LockInfo

    lock = LockInfo("report", 1, now + dt.timedelta(seconds=125))
    seen = Seen(at=now.timestamp(), locks=(lock,))
    named = {"root": "", "page": "Locks", "storage": "mem://", "proof": "", "own": "__alkstore_"}
    return named | {"seen": seen, "now": now.timestamp(), "trouble": None, "write": False, "asks": False}
