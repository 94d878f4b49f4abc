"""What the contract accepts must not raise: a typed error there breaks a promise, and is not just an error."""

from collections.abc import Iterator
from contextlib import contextmanager

from alkstore import AlkstoreError
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.failure import shown

__all__ = ["accepts"]


@contextmanager
def accepts(ctx: Context, promise: str) -> Iterator[None]:
    """Hold a block to raise no error of alkstore's."""
    try:
        yield
    except AlkstoreError as error:
        ctx.fail(promise, "no error", shown(error))
    ctx.note(f"kept: {promise}")
