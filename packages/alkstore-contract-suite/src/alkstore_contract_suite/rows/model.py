"""Rows MODEL-*: whole areas at once. What is done is drawn, and each answer is one that the model of the contract allows.

They say nothing that other rows do not say, but of sequences that nobody wrote down. So each depends on the rows of its
area that everything in it needs: a broken promise is told once, by the row whose it is.
"""

from typing import Final

from alkstore_contract_suite.row import drawn

ORACLE: Final = "every answer, and everything that can be looked at after each step, against the model"

QUEUE: Final = ("Q-01", "Q-03", "Q-05", "Q-06", "Q-09", "Q-10")
STREAM: Final = ("STR-01", "STR-03", "STR-06")

drawn(
    "MODEL-QUEUE",
    "queue",
    name="jobs_do_what_the_model_does",
    text="Jobs: whatever is enqueued, claimed, settled by live or stale handles, swept and redriven, at any time.",
    oracle=ORACLE,
    modes=("plain", "second"),
    kills=("attempts-not-counted", "priority-inverted"),
    depends=QUEUE,
)
drawn(
    "MODEL-STREAM",
    "stream",
    name="events_do_what_the_model_does",
    text="Events: whatever is published, trimmed, saved and received, from any place.",
    oracle=ORACLE,
    modes=("plain", "second"),
    kills=("save-offset-moves-backwards", "trim-drops-the-event-after-the-horizon"),
    depends=STREAM,
)
drawn(
    "MODEL-LOCK",
    "lock",
    name="locks_do_what_the_model_does",
    text="Locks: whoever takes, renews and frees them, holders and those who were, at any time.",
    oracle=ORACLE,
    modes=("plain", "second"),
    kills=("held-at-its-expiry-instant", "release-ignores-owner"),
    depends=("LOCK-01", "LOCK-02", "LOCK-04"),
)
drawn(
    "MODEL-SCHEDULE",
    "schedule",
    name="schedules_do_what_the_model_does",
    text="Schedules: whatever is registered, changed, removed and fired, with time going both ways.",
    oracle=ORACLE,
    modes=("plain", "second"),
    kills=("tick-counts-schedules",),
    depends=("SCHED-01", "SCHED-04", "Q-01"),
)
drawn(
    "MODEL-WHOLE",
    "whole",
    name="transactions_do_what_the_model_does",
    text="All areas at once: transactions, outboxes, wakes, time, and the ends of stores.",
    oracle=ORACLE,
    modes=("plain", "second", "reopen", "crash-kill"),
    kills=("rolled-back-job-stays", "tx-ack-is-ignored"),
    depends=(*QUEUE, *STREAM, "TX-01", "TX-03", "OBX-03"),
)
