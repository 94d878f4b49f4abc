"""The rows of the contract, read from the text that the suite carries along."""

import functools
import importlib.resources
import re
from collections.abc import Mapping
from typing import Final

__all__ = ["areas", "promises"]

ROW: Final = re.compile(r"^- ([A-Z]+-\d\d) (.+)$", re.MULTILINE)

AREA: Final = re.compile(r"^### ([A-Z]+): (.+)$", re.MULTILINE)


@functools.cache
def promises() -> Mapping[str, str]:
    """Give the text of every row by its id, in the order of the contract."""
    return dict(ROW.findall(_text()))


@functools.cache
def areas() -> Mapping[str, str]:
    """Give what each area is about by the word that its rows' ids begin with, in the order of the contract."""
    return dict(AREA.findall(_text()))


@functools.cache
def _text() -> str:
    return importlib.resources.files("alkstore_contract_suite").joinpath("contract.md").read_text("utf-8")
