"""Check what no other tool checks: that the packages fit together, and that the files keep the house rules.

Prints one line a problem; exits with 1 if there is any. The standard library is enough to run it.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from workspace import CONSTRAINTS, ROOT, distribution, packages

__all__ = ["CHECKS", "main"]

LONGEST_FILE = 400
LONGEST_TEST_FILE = 500
"""A file of tests is read by their names, so it may be somewhat longer."""
LONGEST_FUNCTION = 50
WANTED_FUNCTION = 30
"""Longer ones are counted, not refused."""
LONG_FILES: dict[str, str] = {}
"""Files over `LONGEST_FILE`, each with its reason."""

VERSION_IN_CODE = re.compile(r'^__version__\b.*= "(.*)"$', re.MULTILINE)

# Written in pieces, so that this file does not find itself.
LEAKS = {
    r"(?<![\w.~])/" + r"(root|home|Users|work|opt)/\w": "a path of somebody's machine",
    r"file:" + r"///[a-z]": "a path of somebody's machine",
    r"--(extra-)?index" + r"-url": "a package index of somebody's machine",
    r"\bTO" + r"DO\b|\bFIX" + r"ME\b": "work left undone",
}
TEXT = {".py", ".toml", ".md", ".txt", ".yml", ".yaml", ".sql", ".cfg", ".lock", ""}


def versions(root: Path) -> Iterator[str]:
    """All packages have one version, and pin each other to it."""
    known = packages(root)
    names = {package.name for package in known}
    version = known[0].version
    for package in known:
        written = {package.version, *_versions_in_code(package.source)}
        for other in sorted(written - {version}):
            yield f"{package.name}: version {other}, {known[0].name} has {version}"
        for requirement in chain(package.project.get("dependencies", []), *package.extras.values()):
            name = distribution(requirement)
            # uv ignores a sibling's version in a workspace, so a wrong pin shows only in the wheel's user's terminal.
            if name in names and re.sub(r"\[.*?\]", "", requirement) != f"{name}=={version}":
                yield f"{package.name}: requires {requirement!r}, must be '{name}=={version}'"


def _versions_in_code(source: Path) -> list[str]:
    return [
        version
        for path in source.glob("*.py")
        for version in VERSION_IN_CODE.findall(path.read_text("utf-8"))
    ]


def python_range(root: Path) -> Iterator[str]:
    """All packages support the same Pythons as the workspace."""
    workspace = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["requires-python"]
    for package in packages(root):
        if package.project.get("requires-python") != workspace:
            yield f"{package.name}: requires-python must be {workspace!r}, as in the root"


def licences(root: Path) -> Iterator[str]:
    """Each package has a real copy of the licence: a link would stop the build."""
    licence = (root / "LICENSE").read_bytes()
    for package in packages(root):
        copy = package.folder / "LICENSE"
        if copy.is_symlink() or not copy.is_file() or copy.read_bytes() != licence:
            yield f"{package.name}: LICENSE must be a copy of the root's"


def layout(root: Path) -> Iterator[str]:
    """Each package is typed, and no tests folder is a package."""
    for package in packages(root):
        if not (package.source / "py.typed").is_file():
            yield f"{package.name}: {package.source.name}/py.typed is missing"
        for init in package.folder.glob("tests/**/__init__.py"):
            yield f"{init.relative_to(root)}: a tests folder must be no package, or same-named files clash"


def contract_copies(root: Path) -> Iterator[str]:
    """The suite carries the contract that the documentation shows."""
    original = (root / "docs" / "contract.md").read_bytes()
    for copy in root.glob("packages/*/src/*/contract.md"):
        if copy.read_bytes() != original:
            yield f"{copy.relative_to(root)}: differs from docs/contract.md; copy that one here"


def constraints(root: Path) -> Iterator[str]:
    """The versions for pip are those of the lock."""
    lock = tomllib.loads((root / "uv.lock").read_text("utf-8"))["package"]
    locked = {f"{entry['name']}=={entry['version']}" for entry in lock if "registry" in entry["source"]}
    written = {line.split(" ")[0] for line in (root / CONSTRAINTS).read_text("utf-8").splitlines() if line}
    for requirement in sorted(locked ^ written):
        where = "uv.lock" if requirement in locked else CONSTRAINTS.as_posix()
        yield f"{requirement} is only in {where}; run `nox -s lock`"


def sizes(root: Path) -> Iterator[str]:
    """Files and functions stay short enough to be read."""
    for path in _tracked(root, ".py"):
        name = path.relative_to(root).as_posix()
        lines = path.read_text("utf-8").count("\n")
        most = LONGEST_TEST_FILE if "tests" in path.parts else LONGEST_FILE
        if lines > most and name not in LONG_FILES:
            yield f"{name}: {lines} lines, at most {most}"
    for length, where in functions(root):
        if length > LONGEST_FUNCTION:
            yield f"{where} has {length} lines, at most {LONGEST_FUNCTION}"


def functions(root: Path) -> Iterator[tuple[int, str]]:
    """Give the length and the place of every function. What it says of itself to its callers is no part of it."""
    for path in _tracked(root, ".py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0]
                said = (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(node) else 0
                length = (node.end_lineno or node.lineno) - node.lineno + 1 - said
                yield length, f"{path.relative_to(root).as_posix()}:{node.lineno}: {node.name}"


def leaks(root: Path) -> Iterator[str]:
    """No file names a machine, a private package index, or work left undone."""
    for path in _tracked(root, *TEXT):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
            for pattern, what in LEAKS.items():
                if found := re.search(pattern, line):
                    yield f"{path.relative_to(root)}:{number}: {what}: {found.group()!r}"


def _tracked(root: Path, *suffixes: str) -> Iterator[Path]:
    """Give git's files, new ones too; ignored ones are nobody's business."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    paths = (root / name for name in sorted(listed.split("\0")) if name)
    return (path for path in paths if path.suffix in suffixes and path.is_file())


CHECKS: tuple[Callable[[Path], Iterator[str]], ...] = (
    versions,
    python_range,
    licences,
    layout,
    contract_copies,
    constraints,
    sizes,
    leaks,
)


def main(root: Path = ROOT) -> int:
    """Run every check, print the problems, and give the exit code."""
    problems = [f"{check.__name__}: {problem}" for check in CHECKS for problem in check(root)]
    print("\n".join(problems) or f"workspace: {len(CHECKS)} checks passed")
    return 1 if problems else 0


def report(root: Path = ROOT) -> None:
    """Say how many functions are longer than wanted, and which are the longest."""
    long = sorted((found for found in functions(root) if found[0] > WANTED_FUNCTION), reverse=True)
    print(f"functions over {WANTED_FUNCTION} lines: {len(long)}")
    for length, where in long[:5]:
        print(f"  {length} {where}")


if __name__ == "__main__":
    report()
    sys.exit(main())
