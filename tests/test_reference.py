"""The reference names what is public, so that a new name cannot be forgotten there."""

import importlib
import re
from pathlib import Path

import pytest

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
NAMED = [
    "alkstore",
    "alkstore.worker",
    "alkstore.sync",
    "alkstore.django",
    "alkstore.otel",
    "alkstore.prometheus",
    "alkstore.logs",
    "alkstore.dashboard",
    "alkstore.observing",
    "alkstore.testing",
    "alkstore.sync.testing",
]
ENGINES = ["alkstore_mem", "alkstore_sqlite", "alkstore_pg"]
PARTS = ["alkstore.opening"]
"""Modules of core of which authors of engines use a name or two, and nobody else any."""
WHOLE = [
    module
    for module in NAMED
    if f"automodule:: {module}\n" in "".join(page.read_text("utf-8") for page in REFERENCE.glob("*.md"))
]
"""Modules of which autodoc prints whatever they name."""


def public_names(module: str) -> set[str]:
    return {f"{module}.{name}" for name in importlib.import_module(module).__all__}


def documented() -> set[str]:
    """Give every name that a page asks autodoc for, with its module."""
    found = {name for module in WHOLE for name in public_names(module)}
    for page in REFERENCE.glob("*.md"):
        module = ""
        for directive, name in re.findall(r"^\.\. (\w+):: ([\w.]+)$", page.read_text("utf-8"), re.MULTILINE):
            if directive == "currentmodule":
                module = f"{name}."
            elif directive != "automodule":
                found.add(name if "." in name else module + name)
    return found


@pytest.mark.parametrize("module", [*NAMED, *ENGINES])
def test_every_public_name_has_its_place_in_the_reference(module: str) -> None:
    public = public_names(module)

    assert public - documented() == set()


def test_the_reference_names_nothing_that_is_not_public() -> None:
    public = {name for module in (*NAMED, *ENGINES, *PARTS) for name in public_names(module)}

    assert documented() - public == set()


@pytest.mark.parametrize("page", sorted(REFERENCE.glob("*.md")), ids=lambda page: page.stem)
def test_every_page_is_reached_from_the_first(page: Path) -> None:
    first = (REFERENCE / "index.md").read_text("utf-8")

    assert page.stem == "index" or f"\n{page.stem}\n" in first
