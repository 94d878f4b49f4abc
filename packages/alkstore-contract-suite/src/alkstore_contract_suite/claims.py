"""What a column says of its engine, as rows may look at it: to compare what was said, never to ask who it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from alkstore.hookspecs import EngineRegistration
from alkstore_contract_suite.factory import Capability, EngineColumn, Registered, Supported

__all__ = ["UNSAID", "Claims", "is_claimed"]


@dataclass(frozen=True, slots=True)
class Claims:
    """What a column says.

    Attributes:
        registration: What the engine's distribution says of the same; None if the column does not give it.
    """

    contract: str = ""
    capabilities: Mapping[str, Capability] = field(default_factory=dict)
    omitted: Mapping[str, str] = field(default_factory=dict)
    registration: EngineRegistration | None = None

    @classmethod
    def of(cls, column: EngineColumn) -> Self:
        """Ask a column."""
        registration = column.registration() if isinstance(column, Registered) else None
        return cls(column.contract, column.capabilities, column.omitted, registration)

    def has(self, word: str) -> bool:
        """Whether a capability is supported; what is not known is not."""
        return isinstance(self.capabilities.get(word), Supported)


UNSAID: Final = Claims()
"""What is known where no column is."""


def is_claimed(said: bool | int | str | None) -> bool:
    """Whether a registration's word for a capability says that it is there: True or a number; a text says why not."""
    return said is not None and not isinstance(said, str) and said is not False
