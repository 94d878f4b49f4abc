"""What all machines are: Hypothesis draws the steps, a play does them, and a trace keeps them."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Protocol

from hypothesis import strategies as st
from hypothesis.stateful import MultipleResults, RuleBasedStateMachine, multiple

from alkstore_contract_suite.machines.trace import Step

__all__ = ["BESIDE", "STEPS", "Machine", "Player", "optional"]

BESIDE: Final = st.sampled_from((-1, 0, 0, 1))
"""Microseconds beside an instant, or offsets beside one, at which things are otherwise."""

STEPS: Final = st.sampled_from(
    (0, 1, 500_000, 1_000_000, 1_000_000, 2_000_000, 5_000_000, 100_000_000, -1, -1_000_000)
)
"""Microseconds by which the clock moves."""


def optional(*values: object) -> st.SearchStrategy[Any]:
    """Draw one of these, or nothing twice as often, which leaves an option out."""
    return st.sampled_from((*(None,) * 2 * len(values), *values))


class Player(Protocol):
    """Does the steps of one run."""

    mode: str

    def do(self, step: Step) -> bool:
        """Do a step and look; gives whether it gave what it was to name."""

    def end(self) -> None:
        """Close what was opened."""


class Machine(RuleBasedStateMachine):
    """A machine on one player. What a rule gives goes by a name of the rule's own, which stands in the bundles.

    Attributes:
        areas: What is looked at after each step.
    """

    areas: ClassVar[tuple[str, ...]] = ()

    def __init__(self, begin: Callable[[], Player]) -> None:
        super().__init__()
        self._player = begin()
        self._names = 0

    @property
    def mode(self) -> str:
        """The mode of the case: what may happen to stores between steps."""
        return self._player.mode

    def do(self, do: str, **arguments: Any) -> bool:
        """Do a step of this verb; arguments that are None are left out."""
        return self._player.do(_step(do, arguments))

    def named(self, do: str, stem: str, **arguments: Any) -> Any:
        """Do a step and give the name of what it gave, for a bundle; nothing if it gave nothing."""
        self._names += 1
        name = f"{stem}{self._names}"
        found: str | MultipleResults[str] = name if self.do(do, **{"as": name, **arguments}) else multiple()
        return found

    def where(self, second: bool) -> str | None:
        """Give the store of a step: the other one if it is drawn and there is one."""
        return "b" if second and self.mode == "second" else None

    def teardown(self) -> None:
        self._player.end()


def _step(do: str, arguments: Mapping[str, Any]) -> Step:
    return {"do": do, **{name: value for name, value in arguments.items() if value is not None}}
