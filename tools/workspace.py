"""What the workspace consists of, read from its own files with the standard library alone."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CONSTRAINTS", "ROOT", "Package", "editables", "group", "packages"]

ROOT = Path(__file__).resolve().parent.parent
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
    def extras(self) -> dict[str, list[str]]:
        return dict(self.project.get("optional-dependencies", {}))


def packages(root: Path = ROOT) -> list[Package]:
    """Give the workspace's distributions, sorted by name."""
    files = sorted(root.glob("packages/*/pyproject.toml"))
    return [Package(path.parent, tomllib.loads(path.read_text("utf-8"))["project"]) for path in files]


def editables(root: Path = ROOT) -> list[str]:
    """Give pip's arguments that install every distribution from its folder, with all its extras."""
    arguments = []
    for package in packages(root):
        extras = f"[{','.join(package.extras)}]" if package.extras else ""
        arguments += ["-e", f"{package.folder}{extras}"]
    return arguments


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
