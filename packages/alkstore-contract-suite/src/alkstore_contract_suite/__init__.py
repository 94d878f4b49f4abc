"""The contract suite: one test for every row of the contract, run on any engine."""

from typing import Final

__all__ = ["CONTRACT_VERSION"]

CONTRACT_VERSION: Final = "1.0"
"""The version of the contract that these rows pin; only engines of the same major version are run."""
