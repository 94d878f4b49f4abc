"""``alkstore-contract init``: the package of an engine that has just been begun."""

import importlib.resources
import keyword
import re
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Final

import alkstore
from alkstore_contract_suite import CONTRACT_VERSION

__all__ = ["SkeletonError", "write"]

NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
SUFFIX: Final = ".template"
"""So that no tool takes the templates for files of this package."""


class SkeletonError(Exception):
    """The skeleton cannot be written, and why."""


def write(name: str, folder: Path) -> list[str]:
    """Write the package of an engine into a new folder; gives what to do next, a line each.

    Raises:
        SkeletonError: The name cannot be that of an engine, or the folder is there already.
    """
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise SkeletonError(f"an engine's name is a word of lower-case letters, digits and '_', got {name!r}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SkeletonError(f"{folder} is there already; choose another folder with --out")
    class_name = "".join(part.capitalize() for part in name.split("_") if part)
    words = {
        "name": name,
        "class_name": class_name,
        "scheme": name.replace("_", "-"),
        "package": f"alkstore_{name}",
        "distribution": f"alkstore-{name.replace('_', '-')}",
        "contract": CONTRACT_VERSION,
        "version": alkstore.__version__,
    }
    root = importlib.resources.files("alkstore_contract_suite").joinpath("skeleton_files")
    for path, text in _files(root):
        target = folder / Template(path).substitute(words).removesuffix(SUFFIX)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(Template(text).substitute(words), "utf-8")
    return [
        f"{folder} is ready. Now:",
        f"  cd {folder}",
        "  pip install --editable '.[contract]'",
        f"  alkstore-contract run --alk-engine {name} --alk-ladder",
    ]


def _files(folder: Traversable, within: str = "") -> Iterator[tuple[str, str]]:
    """Give the path and the text of every template; a folder's own name may be a template too."""
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        path = f"{within}{entry.name}"
        if entry.is_dir():
            yield from _files(entry, f"{path}/")
        elif entry.name.endswith(SUFFIX):
            yield path, entry.read_text("utf-8")
