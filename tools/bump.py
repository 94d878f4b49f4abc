"""Write a new version in every place that holds it: ``python tools/bump.py 0.2.0``; then lock again and build the news."""

import re
import sys
from pathlib import Path

from workspace import ROOT, packages

__all__ = ["bump", "main"]

OWN_VERSION = re.compile(r'^(version = |__version__\b.*= )".*"$', re.MULTILINE)
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def bump(version: str, root: Path = ROOT) -> list[Path]:
    """Write ``version`` and the siblings' pins in each package; gives the files that changed.

    Raises:
        ValueError: ``version`` is not like 1.2.3 or 1.2.3rc1.
    """
    if not VERSION.fullmatch(version):
        raise ValueError(f"version must be like 1.2.3 or 1.2.3rc1, got {version!r}")
    known = packages(root)
    changed = []
    for package in known:
        for path in [package.folder / "pyproject.toml", *sorted(package.source.glob("*.py"))]:
            old = path.read_text("utf-8")
            new = OWN_VERSION.sub(rf'\g<1>"{version}"', old)
            for sibling in known:
                new = re.sub(rf'"({sibling.name}(\[[\w,-]+\])?)==[^"]*"', rf'"\1=={version}"', new)
            if new != old:
                path.write_text(new, "utf-8")
                changed.append(path)
    return changed


def main(arguments: list[str]) -> int:
    """Bump to the one argument, and say what is next."""
    if len(arguments) != 1:
        print("usage: python tools/bump.py VERSION", file=sys.stderr)
        return 2
    try:
        changed = bump(arguments[0])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for path in changed:
        print(path.relative_to(ROOT))
    print("next: nox -s lock && towncrier build --version", arguments[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
