"""The objects whose histories are searched, each as its steps: a named lock, and the leadership of runners."""

from collections.abc import Hashable, Iterable
from typing import Final, cast

from alkstore_contract_suite.histories.call import UNKNOWN, Call

__all__ = ["FREE", "NOBODY", "leading", "locking"]

FREE: Final = (0, 0)
"""The state of a lock that nobody ever had: the holder's fence, 0 for none, and the greatest fence that was given."""

NOBODY: Final = ""
"""The state of a leadership that nobody has."""

SOMEBODY: Final = -1
"""The fence of a holder who did not live to tell it."""


def locking(state: Hashable, call: Call) -> Iterable[Hashable]:
    """Do ``take`` (answer: a fence or None), ``renew`` and ``free`` (given: a fence; answer: whether it was held), ``lapse``."""
    holder, last = cast(tuple[int, int], state)
    if call.do == "lapse":
        return [(0, last)]
    if call.do == "take":
        if call.answer == UNKNOWN:
            return [(SOMEBODY, last)] if holder == 0 else []
        if call.answer is None:
            return [state] if holder != 0 else []
        return [(call.answer, call.answer)] if holder == 0 and call.answer > last else []
    is_held = holder == call.given
    if call.answer != UNKNOWN and call.answer != is_held:
        return []
    return [(0, last)] if is_held and call.do == "free" else [state]


def leading(state: Hashable, call: Call) -> Iterable[Hashable]:
    """Do ``lead`` (answer: whether the caller leads from then on), ``resign``, ``lapse``; given: the runner's name."""
    if call.do == "lapse":
        return [NOBODY]
    if call.do == "resign":
        return [NOBODY] if state == call.given else []
    if call.answer is False:
        return [state] if state != NOBODY else []
    return [call.given] if state == NOBODY else []
