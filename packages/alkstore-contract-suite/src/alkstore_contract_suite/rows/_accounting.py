"""The book of the crash loop: what processes told, and what must be so at the end.

A process tells of a step before it begins it and after it was acknowledged. Of a step that was begun and not told of
further nothing is known: it may have landed, as a whole or not at all, but never twice.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

from alkstore_contract_suite.context import Context

Claim: TypeAlias = dict[str, Any]


class Book:
    """What was told, by its kind.

    Attributes:
        tried: The keys of each step of a producer, by whether it was one transaction with event and entry.
        landed: The keys whose steps were acknowledged, likewise.
    """

    def __init__(self) -> None:
        self.tried: dict[str, list[list[str]]] = {"single": [], "batch": [], "whole": []}
        self.landed: dict[str, list[list[str]]] = {"single": [], "batch": [], "whole": []}
        self._claims: dict[str, list[Claim]] = {"jobs": [], "mail": []}
        self._let_go: set[tuple[str, int, int]] = set()
        self._acked: dict[int, bool] = {}
        self._read: dict[str, list[int]] = defaultdict(list)
        self._last: dict[tuple[str, str, int], int] = {}

    def note(self, process: str, told: Sequence[tuple[Any, ...]]) -> None:
        """Write down what one process told, in its order."""
        for word, *rest in told:
            if word in ("tries", "landed"):
                how, keys = rest
                (self.tried if word == "tries" else self.landed)[how].append(keys)
            elif word == "claimed":
                queue, claim = rest
                self._claims[queue].append(claim)
                self._last[process, queue, claim["id"]] = claim["attempt"]
            elif word == "lets go":
                queue, id = rest
                self._let_go.add((queue, id, self._last[process, queue, id]))
            elif word == "acked":
                _, id, landed = rest
                self._acked[id] = self._acked.get(id, False) or landed
            else:
                self._read[process].append(rest[0])

    # ---------------------------------------------------------------- what must be so

    def check_jobs(self, ctx: Context, dead: Collection[str]) -> None:
        """Every acknowledged job was handled; nothing was invented, nothing stored twice, nothing came after its ack."""
        tried = {key for steps in self.tried.values() for keys in steps for key in keys}
        landed = {key for steps in self.landed.values() for keys in steps for key in keys}
        claimed = {claim["key"] for claim in self._claims["jobs"]}
        ctx.that(landed and claimed, "there was work", observed=(len(landed), len(claimed)))
        ctx.expect(landed - claimed, set(), "no acknowledged job is lost")
        ctx.expect((claimed | set(dead)) - tried, set(), "no job is invented")
        ids: dict[str, set[int]] = defaultdict(set)
        for claim in self._claims["jobs"]:
            ids[claim["key"]].add(claim["id"])
        ctx.expect(
            {key: found for key, found in ids.items() if len(found) > 1}, {}, "no call leaves two rows"
        )
        gone = {key for key, found in ids.items() if any(self._acked.get(id) for id in found)}
        ctx.expect(gone & set(dead), set(), "no job that was acked is there any more")
        for step in (keys for how in ("batch", "whole") for keys in self.tried[how]):
            there = [key in claimed for key in step]
            ctx.that(
                all(there) or not any(there), "a batch and a transaction land whole", observed=(step, there)
            )

    def check_windows(self, ctx: Context) -> None:
        """Nobody was given a row while somebody else had it."""
        for queue, claims in self._claims.items():
            rows: dict[int, list[Claim]] = defaultdict(list)
            for claim in claims:
                rows[claim["id"]].append(claim)
            for id, found in rows.items():
                found.sort(key=lambda claim: claim["attempt"])
                attempts = [claim["attempt"] for claim in found]
                ctx.expect(attempts, sorted(set(attempts)), f"{queue}: no attempt is given to two")
                for before, after in itertools.pairwise(found):
                    is_free = (queue, id, before["attempt"]) in self._let_go or before["until"] <= after[
                        "since"
                    ]
                    ctx.that(
                        is_free, f"{queue}: no row is given twice within its window", observed=(before, after)
                    )
                if queue == "jobs" and self._acked.get(id):
                    last = found[-1]["since"]
                    ctx.expect(
                        [claim for claim in found if claim["since"] > last],
                        [],
                        "no row is given after its ack",
                    )

    def check_wholes(self, ctx: Context, events: Sequence[str]) -> None:
        """A transaction's job, event and entry are there together or not at all."""
        claimed = {claim["key"] for claim in self._claims["jobs"]}
        delivered = {claim["key"] for claim in self._claims["mail"]}
        ctx.expect(Counter(events).most_common(1)[0][1] if events else 1, 1, "no event is there twice")
        wholes = {key for keys in self.tried["whole"] for key in keys}
        ctx.expect(set(events) - wholes, set(), "no event is invented")
        ctx.expect(set(events) ^ (wholes & claimed), set(), "a job and its event land together")
        ctx.expect(
            set(events) ^ delivered,
            set(),
            "an event and its entry land together, and each entry is delivered",
        )
        ctx.expect(
            {key for keys in self.landed["whole"] for key in keys} - set(events), set(), "no event is lost"
        )

    def check_effects(self, ctx: Context, effects: Sequence[str]) -> None:
        """An effect in one transaction with the ack happened once."""
        claimed = {claim["key"] for claim in self._claims["jobs"]}
        ctx.expect(
            [key for key, count in Counter(effects).items() if count > 1], [], "no effect happens twice"
        )
        ctx.expect(set(effects) - claimed, set(), "no effect is invented")

    def check_reading(self, ctx: Context, offsets: Sequence[int]) -> None:
        """Each subscriber saw a stretch of the events, in order, beginning no later than what nobody had seen."""
        places = {offset: place for place, offset in enumerate(offsets)}
        unseen = 0
        for process, seen in self._read.items():
            found = [places.get(offset, -1) for offset in seen]
            ctx.expect(
                found,
                [*range(found[0], found[0] + len(found))],
                f"{process} saw events in order, without gap",
            )
            ctx.that(
                found[0] <= unseen,
                "a subscriber resumes no later than after what was saved",
                observed=found[0],
            )
            unseen = max(unseen, found[-1] + 1)
        ctx.expect(unseen, len(offsets), "a subscriber sees every event in the end")
