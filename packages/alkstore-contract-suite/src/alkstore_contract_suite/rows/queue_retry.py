"""Rows Q-11, Q-12, Q-25 and Q-27: a job that is tried again, or given back."""

import asyncio
import math
from typing import Final

from alkstore import Job, JobState, Queue
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._queue import STORED, later, read, seconds, states, take, take_nothing

LAST_ERROR_BYTES: Final = 16_384
RETRY_ERROR_BYTES: Final = 1_024
CURVE_TOP: Final = 3_600.0
"""Seconds at which the curve saturates, unless the base delay is longer."""


class Refused(Exception):
    """What a handler of ours raises."""


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def raised(error: Exception) -> Exception:
    """Give an error that was raised here, traceback and all."""
    try:
        raise error
    except Exception as caught:
        return caught


@row(
    "Q-11",
    text="retry with a delay: PENDING at now + delay, attempts kept, the error's text beside it.",
    oracle="the row read back, and claims one microsecond before and at its instant",
    modes=STORED,
    kills=("retry-resets-attempts",),
)
async def a_retried_job_is_pending_at_its_instant(ctx: Context) -> None:
    name = ctx.name("mail")
    job_id = await ctx.store.queue(name, max_attempts=4).enqueue({"n": 1}, headers={"trace": "7"}, priority=3)
    first = await read(ctx, ctx.store.queue(name), job_id)
    handle = await take(ctx, ctx.store.queue(name))
    await ctx.advance(2)
    now = await ctx.now()
    ctx.expect(await handle.retry(error="no route", delay=seconds(5.000_001)), True, "a live retry lands")

    queue = (await ctx.turn()).queue(name)
    job = await read(ctx, queue, job_id, "a retried job keeps its row")
    ctx.expect((job.state, job.attempts), (JobState.PENDING, 1), "PENDING, attempts kept")
    ctx.expect(job.run_at, later(now, 5.000_001), "pending at now + delay")
    ctx.expect(
        (job.retry_error, job.last_error, job.died_at), ("no route", None, None), "retry_error shows why"
    )
    found = (job.payload, dict(job.headers), job.priority, job.created_at)
    ctx.expect(found, ({"n": 1}, {"trace": "7"}, 3, first.created_at), "the rest stays as it was")
    await ctx.advance(5)
    await take_nothing(ctx, queue, "one microsecond before its instant a retried job is not claimable")
    await ctx.advance(MICRO)
    again = await take(ctx, queue, "at its instant a retried job is claimable")
    ctx.expect((again.job.id, again.job.attempts), (job_id, 2), "the attempts before count")
    ctx.expect(again.job.retry_error, "no route", "retry_error stays while the row lives")


@row(
    "Q-11",
    text="A retry on the last attempt makes the job DEAD, a given delay notwithstanding.",
    oracle="a budget of three gives three claims; then last_error and died_at are set",
    modes=STORED,
    kills=("retry-outlives-the-budget",),
)
async def a_retry_on_the_last_attempt_is_death(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    job_id = await queue.enqueue("work", max_attempts=3)
    for attempt in (1, 2):
        handle = await take(ctx, queue, "a budget of three gives three claims")
        ctx.expect(handle.job.attempts, attempt, "a budget of three gives three claims")
        await handle.retry(error=f"try {attempt}", delay=-1)
    last = await take(ctx, queue, "a budget of three gives three claims")
    await ctx.advance(1)
    died = await ctx.now()
    ctx.expect(await last.retry(error="try 3", delay=60), True, "the last retry lands")

    queue = (await ctx.turn()).queue(name)
    job = await read(ctx, queue, job_id, "a job that used up its attempts is kept")
    found = (job.state, job.last_error, job.died_at, job.attempts)
    ctx.expect(found, (JobState.DEAD, "try 3", died, 3), "on the last attempt a retry is death")
    ctx.expect(job.retry_error, None, "retry_error is there while the row lives")
    await ctx.advance(600)
    await take_nothing(ctx, queue, "a dead job is never claimed, a given delay notwithstanding")


@row(
    "Q-11",
    text="Without an error the text is 'attempts used up', for a failure 'failed'.",
    oracle="last_error of both, and of a budget of one",
    modes=("plain", "second"),
)
async def a_death_without_an_error_says_why(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name, max_attempts=1)
    retried, failed = await queue.enqueue(1), await queue.enqueue(2, max_attempts=9)
    ctx.expect(await (await take(ctx, queue)).retry(), True, "a retry on the only attempt lands")
    ctx.expect(await (await take(ctx, queue)).fail(), True, "a failure lands")

    queue = (await ctx.turn()).queue(name)
    job = await read(ctx, queue, retried)
    ctx.expect((job.state, job.last_error), (JobState.DEAD, "attempts used up"), "no error: attempts used up")
    job = await read(ctx, queue, failed)
    ctx.expect((job.state, job.last_error, job.attempts), (JobState.DEAD, "failed", 1), "no error: failed")


@row(
    "Q-11",
    text="An exception is kept as module.Type: message and the tail of its traceback, never empty.",
    oracle="the text of raised, of never raised and of message-less exceptions",
    modes=("plain", "second"),
)
async def an_exception_is_kept_with_its_traceback(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    head = f"{__name__}.Refused"
    cases = [
        (raised(Refused("no route")), f"{head}: no route"),
        (Refused("flat"), f"{head}: flat"),
        (Refused(), head),
    ]
    for error, start in cases:
        job_id = await queue.enqueue(1, max_attempts=2)
        ctx.expect(await (await take(ctx, queue)).retry(error=error, delay=0), True, "the outcome lands")
        text = (await read(ctx, queue, job_id)).retry_error or ""
        ctx.that(start in text, "an exception is kept as module.Type: message", observed=text)
        ctx.expect(await (await take(ctx, queue)).retry(error=error), True, "the outcome lands")

        job = await read(ctx, (await ctx.turn()).queue(name), job_id)
        text = job.last_error or ""
        ctx.that(start in text, "an exception is kept as module.Type: message", observed=text)
        if error.__traceback__ is not None:
            ctx.that("in raised" in text, "the tail of the traceback is kept", observed=text)


@row(
    "Q-12",
    text="The curve: c = min(base · 2^(attempts−1), max(base, 3600 s)), a delay of c/2 to c, saturating.",
    oracle="run_at − now of a retry at each attempt, for bases below, at and above the top",
    modes=("plain", "second"),
    kills=("curve-never-doubles",),
)
async def the_curve_doubles_up_to_its_top(ctx: Context) -> None:
    name = ctx.name("mail")
    for base, attempts in ((0.000_003, 48), (2.0, 14), (1_800.0, 4), (3_600.0, 3), (7_200.0, 3)):
        queue = (await ctx.turn()).queue(name)
        job_id = await queue.enqueue(1, base_delay=base, max_attempts=10**6, visibility_timeout=1)
        for attempt in range(1, attempts + 1):
            handle = await take(ctx, queue)
            ctx.expect(handle.job.attempts, attempt, "attempts are counted on")
            ctx.expect(await handle.retry(error="again"), True, "a live retry lands")
            top = min(base * 2.0 ** (attempt - 1), max(base, CURVE_TOP))
            waits = ((await read(ctx, queue, job_id)).run_at - await ctx.now()).total_seconds()
            bound = (math.floor(top * 500_000) / 1_000_000, math.ceil(top * 1_000_000) / 1_000_000)
            ctx.that(
                bound[0] <= waits <= bound[1],
                f"attempt {attempt} at a base of {base:g} s waits from half of the curve to all of it",
                observed=(bound[0], waits, bound[1]),
            )
            await ctx.advance(waits)
        await queue.cancel(job_id)


async def _after_a_retry(ctx: Context, queue: Queue, base: float, attempts: int) -> list[float]:
    """Retry a batch of jobs at one attempt; gives their delays in seconds."""
    await queue.enqueue_batch(range(64), base_delay=base, max_attempts=attempts + 1)
    for _ in range(attempts - 1):
        await asyncio.gather(*[handle.retry(delay=0) for handle in await queue.claim_batch(64)])
    now = await ctx.now()
    landed = await asyncio.gather(*[handle.retry() for handle in await queue.claim_batch(64)])
    ctx.expect(landed, [True] * 64, "a live retry lands")
    delays = [(job.run_at - now).total_seconds() for job in await queue.list(state=JobState.PENDING)]
    await asyncio.gather(*[queue.cancel(job.id) for job in await queue.list()])
    return delays


@row(
    "Q-12",
    text="The jitter spreads jobs over the upper half of the curve; a base of 0 gives 0.",
    oracle="64 delays at one attempt: within bounds, not alike, on both sides of the middle",
    modes=("plain", "second"),
    kills=("curve-without-jitter",),
)
async def the_jitter_spreads_over_half_of_the_curve(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = (await ctx.turn()).queue(name)
    for base, attempts, top in ((8.0, 1, 8.0), (8.0, 3, 32.0), (9_000.0, 2, 9_000.0)):
        delays = await _after_a_retry(ctx, queue, base, attempts)
        ctx.expect(len(delays), 64, "a retry keeps the row")
        outside = [delay for delay in delays if not top / 2 <= delay <= top]
        ctx.expect(outside, [], "a delay is from half of the curve to all of it")
        # 64 draws that all fall on one side of the middle: once in 2^63 runs.
        ctx.that(
            min(delays) < 0.75 * top < max(delays),
            "the jitter is uniform, not one value",
            observed=delays[:4],
        )
        ctx.that(len(set(delays)) > 32, "jobs that failed together come back apart", observed=delays[:4])
    for attempts in (1, 2, 7):
        delays = await _after_a_retry(ctx, queue, 0, attempts)
        ctx.expect(set(delays), {0.0}, "a base of 0 gives a delay of 0")


async def _settled(queue: Queue, job_id: int) -> tuple[Job | None, str]:
    job = await queue.get_job(job_id)
    text = "" if job is None else (job.last_error or job.retry_error or "")
    return job, text


@row(
    "Q-25",
    text="Any error text is accepted; NUL and lone surrogates become U+FFFD.",
    oracle="the text read back after retry and after fail; the outcome landed",
    modes=STORED,
)
async def an_error_text_is_made_storable(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    cases = {
        "a\0b\ud800c\udfff": "a\ufffdb\ufffdc\ufffd",
        "naïve \u2028 😀 '\"\\;%s": "naïve \u2028 😀 '\"\\;%s",
        "": "",
        "\n\t\x1b[0m": "\n\t\x1b[0m",
    }
    expected: list[tuple[int, JobState, str]] = []
    for text, kept in cases.items():
        for death in (False, True):
            job_id = await queue.enqueue(1)
            handle = await take(ctx, queue)
            landed = await handle.fail(text) if death else await handle.retry(error=text, delay=60)
            ctx.expect(landed, True, "the outcome lands, whatever the text")
            expected.append((job_id, JobState.DEAD if death else JobState.PENDING, kept))

    queue = (await ctx.turn()).queue(name)
    for job_id, state, kept in expected:
        job, text = await _settled(queue, job_id)
        ctx.expect(
            (job and job.state, text),
            (state, kept),
            "NUL and lone surrogates become U+FFFD, the rest is kept",
        )


@row(
    "Q-25",
    text="The text is cut at a character's edge: 16,384 bytes of UTF-8 in last_error, 1,024 in retry_error.",
    oracle="the longest prefix that fits, for characters of one to four bytes, and exactly at the limit",
    modes=("plain", "second", "reopen"),
    kills=("error-text-cut-in-characters",),
)
async def an_error_text_is_cut_at_a_character(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    expected: dict[int, str] = {}
    for character in ("x", "é", "€", "😀"):
        for lead in ("", "a"):
            text = lead + character * LAST_ERROR_BYTES
            for limit, death in ((LAST_ERROR_BYTES, True), (RETRY_ERROR_BYTES, False)):
                fits = text.encode()[:limit].decode(errors="ignore")
                for given in (text, fits):
                    job_id = await queue.enqueue(1)
                    handle = await take(ctx, queue)
                    landed = await handle.fail(given) if death else await handle.retry(error=given, delay=60)
                    ctx.expect(landed, True, "the outcome lands, however long the text")
                    expected[job_id] = fits
    job_id = await queue.enqueue(1, max_attempts=1)
    await (await take(ctx, queue)).retry(error="y" * 20_000)
    expected[job_id] = "y" * LAST_ERROR_BYTES

    queue = (await ctx.turn()).queue(name)
    for job_id, fits in expected.items():
        _, text = await _settled(queue, job_id)
        ctx.expect(
            (len(text.encode()), text), (len(fits.encode()), fits), "the text is cut at a character's edge"
        )


@row(
    "Q-25",
    text="An exception whose text fails gives its type's name, and the outcome lands.",
    oracle="the text after retry, fail and the last attempt",
    modes=("plain",),
)
async def an_exception_without_words_gives_its_name(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"))
    for error in (Mute(), raised(Mute()), raised(Refused("\0" + "\udc80" * 9_000))):
        for budget, death in ((2, False), (2, True), (1, False)):
            job_id = await queue.enqueue(1, max_attempts=budget)
            handle = await take(ctx, queue)
            landed = await handle.fail(error) if death else await handle.retry(error=error, delay=60)
            ctx.expect(landed, True, "the outcome lands, whatever the error")
            job, text = await _settled(queue, job_id)
            ctx.that(
                type(error).__name__ in text, "an error gives its type's name at least", observed=text[:200]
            )
            ctx.that("\0" not in text, "NUL becomes U+FFFD", observed=text[:200])
            limit = LAST_ERROR_BYTES if job and job.state is JobState.DEAD else RETRY_ERROR_BYTES
            ctx.that(len(text.encode()) <= limit, "the text is cut", observed=len(text.encode()))


@row(
    "Q-27",
    text="release gives the claim back: PENDING, run_at unchanged, attempts as before, claimable at once.",
    oracle="the row read back, and the next claim at its old place in the order",
    modes=STORED,
    kills=("release-costs-an-attempt",),
)
async def a_released_job_is_as_before_its_claim(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    job_id = await queue.enqueue("first", max_attempts=2)
    await (await take(ctx, queue)).retry(error="once", delay=3)
    await ctx.advance(3)
    behind = await queue.enqueue("behind")
    before = await read(ctx, queue, job_id)
    await ctx.advance(1)
    handle = await take(ctx, queue)
    ctx.expect(handle.job.attempts, 2, "the claim is the last attempt")
    ctx.expect(await handle.release(), True, "a live release lands")

    queue = (await ctx.turn()).queue(name)
    job = await read(ctx, queue, job_id, "a row is never dead by a release")
    found = (job.state, job.run_at, job.attempts, job.retry_error, job.last_error)
    kept = (JobState.PENDING, before.run_at, 1, "once", None)
    ctx.expect(found, kept, "PENDING, run_at unchanged, attempts as before the claim")
    again = await take(ctx, queue, "a released job is claimable at once")
    ctx.expect((again.job.id, again.job.attempts), (job_id, 2), "at its old place, with its old budget")
    ctx.expect((await take(ctx, queue)).job.id, behind, "what stood behind it still does")


@row(
    "Q-27",
    text="A row is never DEAD by a release, though it be the last attempt, again and again.",
    oracle="a budget of one, released ten times, is claimed as a first attempt each time",
    modes=("plain", "second"),
    kills=("release-costs-an-attempt",),
)
async def a_release_never_uses_the_budget(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name, max_attempts=1)
    job_id = await queue.enqueue("work", expires=50)
    for _ in range(10):
        queue = (await ctx.turn()).queue(name)
        handle = await take(ctx, queue, "a released job is claimable at once")
        ctx.expect(handle.job.attempts, 1, "a release takes its attempt back")
        ctx.expect(await handle.release(), True, "a live release lands")
        ctx.expect(await queue.sweep_expired(), 0, "a released row is not exhausted")
    handle = await take(ctx, queue)
    await ctx.advance(50)
    ctx.expect(await handle.release(), True, "the holder of an expired job may release it")
    ctx.expect(await states(queue), {job_id: JobState.PENDING}, "a row is never dead by a release")
    await take_nothing(ctx, queue, "an expired job is never claimed")
