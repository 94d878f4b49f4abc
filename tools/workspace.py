"""What the workspace consists of, read from its own files with the standard library alone."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

__all__ = [
    "CONSTRAINTS",
    "FOLDERS",
    "ROOT",
    "Package",
    "contract",
    "distribution",
    "editables",
    "engines",
    "group",
    "packages",
    "requirements",
]

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("packages", "examples")
"""Where distributions are, each in a folder of its own, relative to the root."""

CONSTRAINTS = Path("requirements", "constraints.txt")
"""The lock's versions for pip, relative to the root."""


@dataclass(frozen=True, slots=True)
class Package:
    """One distribution of the workspace."""

    folder: Path
    project: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.project["name"])

    @property
    def version(self) -> str:
        return str(self.project["version"])

    @property
    def source(self) -> Path:
        """The folder of the one import package."""
        (source,) = (path.parent for path in self.folder.glob("src/*/__init__.py"))
        return source

    @property
    def columns(self) -> list[str]:
        """The engines that this distribution brings to the contract suite."""
        return list(self.project.get("entry-points", {}).get("alkstore.contract_engines", {}))

    @property
    def extras(self) -> dict[str, list[str]]:
        return dict(self.project.get("optional-dependencies", {}))


def packages(root: Path = ROOT) -> list[Package]:
    """Give the workspace's distributions, sorted by name."""
    files = (path for folder in FOLDERS for path in root.glob(f"{folder}/*/pyproject.toml"))
    known = [Package(path.parent, tomllib.loads(path.read_text("utf-8"))["project"]) for path in files]
    return sorted(known, key=lambda package: package.name)


def engines(root: Path = ROOT) -> list[str]:
    """Give the engines of the workspace: whoever runs the contract on all of them asks here, so none is forgotten."""
    return [name for package in packages(root) for name in package.columns]


def contract(*names: str) -> list[str]:
    """Give pytest's arguments for the contract on these engines, or on all of the workspace's.

    Each is named, so that one which is not installed is an error and not left out; one for which this machine lacks
    something, a pooler say, is shown as missing.
    """
    chosen = (argument for name in names or engines() for argument in ("--alk-engine", name))
    return ["--pyargs", "alkstore_contract_suite", "--alk-allow-missing", *chosen]


def editables(root: Path = ROOT) -> list[str]:
    """Give pip's arguments that install every distribution from its folder, when its `requirements` are there.

    Siblings are not resolved: pip looks a sibling up in the index if another package asks for it first.
    """
    folders = (argument for package in packages(root) for argument in ("-e", str(package.folder)))
    return ["--no-deps", *folders]


def requirements(root: Path = ROOT) -> list[str]:
    """Give what the distributions need from outside the workspace, with all their extras."""
    known = packages(root)
    names = {package.name for package in known}
    needed = (
        requirement
        for package in known
        for requirement in chain(package.project.get("dependencies", []), *package.extras.values())
        if distribution(requirement) not in names
    )
    return list(dict.fromkeys(needed))


def distribution(requirement: str) -> str:
    """Give the name that a requirement begins with."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def group(name: str, root: Path = ROOT) -> list[str]:
    """Give the requirements of a dependency group; pip reads groups only since 25.1."""
    groups = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    return list(dict.fromkeys(_expand(groups, name)))


def _expand(groups: dict[str, list[Any]], name: str) -> Iterator[str]:
    for entry in groups[name]:
        if isinstance(entry, str):
            yield entry
        else:
            yield from _expand(groups, entry["include-group"])
