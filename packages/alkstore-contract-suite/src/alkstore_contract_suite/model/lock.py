"""Named locks: who holds which until when, and which fence comes next. Rows: LOCK-01 to LOCK-07."""

from dataclasses import dataclass

from alkstore_contract_suite.model.allowed import Allowed, just, raising, such

__all__ = ["Holder", "Locks"]


@dataclass(slots=True)
class Holder:
    """One acquisition, and whether its handle was used up."""

    name: str
    fence: int
    is_consumed: bool = False


class Locks:
    """Every lock of one storage."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, int]] = {}
        self._fences: dict[str, int] = {}

    def is_held(self, now: int, name: str) -> bool:
        """Whether somebody holds it now."""
        return name in self._held and now < self._held[name][1]

    def take(self, now: int, name: str, ttl: int) -> Allowed:
        """A held lock is refused; a free one gives a fence past every earlier one of its name."""
        if self.is_held(now, name):
            return just(None)
        last = self._fences.get(name, 0)

        def then(fence: int) -> None:
            self._fences[name] = fence
            self._held[name] = fence, now + ttl

        return such(f"a fence past {last}", lambda fence: isinstance(fence, int) and fence > last, then)

    def _is_live(self, now: int, holder: Holder) -> bool:
        return self.is_held(now, holder.name) and self._held[holder.name][0] == holder.fence

    def renew(self, now: int, holder: Holder, ttl: int) -> Allowed:
        """A whole new window from now, unless it lapsed."""
        if holder.is_consumed:
            return raising("HandleConsumed")
        is_live = self._is_live(now, holder)
        return just(is_live, lambda: self._hold(holder, now + ttl) if is_live else None)

    def _hold(self, holder: Holder, until: int) -> None:
        self._held[holder.name] = holder.fence, until

    def release(self, now: int, holder: Holder) -> Allowed:
        """Free at once, unless it lapsed; the handle is used up either way."""
        if holder.is_consumed:
            return raising("HandleConsumed")
        is_live = self._is_live(now, holder)

        def then() -> None:
            holder.is_consumed = True
            if is_live:
                del self._held[holder.name]

        return just(is_live, then)

    def look(self, now: int) -> list[tuple[str, int, int]]:
        """Give (name, fence, expires_at) of those that are held, by name."""
        return [
            (name, fence, until)
            for name, (fence, until) in sorted(self._held.items())
            if self.is_held(now, name)
        ]

    def edges(self) -> set[int]:
        """Give the instants at which a lock lapses."""
        return {until for _, until in self._held.values()}
