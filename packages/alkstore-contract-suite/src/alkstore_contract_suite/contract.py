"""The rows of the contract, read from the text that the suite carries along."""

import functools
import importlib.resources
import re
from collections.abc import Mapping
from typing import Final

__all__ = ["promises"]

ROW: Final = re.compile(r"^- ([A-Z]+-\d\d) (.+)$", re.MULTILINE)


@functools.cache
def promises() -> Mapping[str, str]:
    """Give the text of every row by its id, in the order of the contract."""
    text = importlib.resources.files("alkstore_contract_suite").joinpath("contract.md").read_text("utf-8")
    return dict(ROW.findall(text))
