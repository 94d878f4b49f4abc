"""The virtual environment of `tools/dev.py`: made when it is missing, half-made or out of date, else kept."""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from workspace import CONSTRAINTS, ROOT, editables, group, packages, requirements

__all__ = ["Failed", "call", "environ", "executable", "fingerprint", "prepare"]

FOLDER = Path(".dev", "venv")
STAMP = "alkstore-fingerprint"
GRACE = 10
"""Seconds that a command has after Ctrl-C to clean up."""


class Failed(Exception):
    """The environment could not be made; the text says what to do."""


def prepare(root: Path = ROOT) -> Path:
    """Give the environment's Python, and make the environment first if need be.

    Raises:
        Failed: venv or pip did not succeed; pip's own words went to the terminal.
    """
    folder = root / FOLDER
    stamp = folder / STAMP
    wanted = fingerprint(root)
    python = executable(folder, "python")
    if python.exists() and stamp.exists() and stamp.read_text("utf-8") == wanted:
        return python
    print(
        f"setting up {FOLDER} with Python {sys.version.split()[0]}; the first time takes a minute", flush=True
    )
    _create(folder)
    _install(root, python)
    # Written last: an environment without it was interrupted, and is made anew.
    stamp.write_text(wanted, "utf-8")
    return python


def executable(folder: Path, name: str) -> Path:
    """Give the path of a program in an environment, on this system."""
    return folder / ("Scripts" if os.name == "nt" else "bin") / (f"{name}.exe" if os.name == "nt" else name)


def environ() -> dict[str, str]:
    """Give this process's environment without what would let another Python's packages in."""
    kept = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
    # A user's `pip config set install.user yes` makes every install into a virtual environment fail.
    return kept | {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def call(command: list[str], cwd: Path | None = None) -> int:
    """Run a command to its end and give its exit code; after Ctrl-C it may still clean up."""
    with subprocess.Popen(command, cwd=cwd, env=environ()) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The terminal told the command as well; subprocess.run would kill it in the middle of its clean-up.
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.terminate()
            raise


def fingerprint(root: Path) -> str:
    """Give a digest of everything that the environment depends on; a moved checkout breaks editable installs too."""
    distributions = (package.folder / "pyproject.toml" for package in packages(root))
    files = [root / "pyproject.toml", root / CONSTRAINTS, *distributions]
    parts = [sys.version, sys.base_prefix, str(root), *(path.read_text("utf-8") for path in files)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _create(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        venv.create(folder, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed(
            f"could not make {folder}: {error}; on Debian and Ubuntu install the package "
            f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        ) from error


def _install(root: Path, python: Path) -> None:
    # Twice quiet: pip warns of every place in a user's configuration that does not hold a package.
    pip = [str(python), "-m", "pip", "install", "-qq", "--constraint", str(root / CONSTRAINTS)]
    # First what builds the packages, then they themselves: with build isolation pip would fetch an unpinned back end.
    steps = [
        [*pip, *group("build", root), *group("test", root), *requirements(root)],
        [*pip, "--no-build-isolation", *editables(root)],
    ]
    for step in steps:
        if call(step) != 0:
            raise Failed(
                "pip could not install the packages; its message is above, your pip configuration is used"
            )
