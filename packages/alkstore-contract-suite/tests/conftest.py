"""An author's directory, with a column in its conftest.py, and pytest run there in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

SKELETON = """
from alkstore import Store
from alkstore.engine import Traits
from alkstore_contract_suite.factory import Supported, Unsupported
from alkstore_contract_suite.in_process import InProcessColumn
from alkstore_contract_suite.row import CAPABILITIES

class Skeleton:
    traits = Traits()
    def __getattr__(self, name):
        async def method(*args, **kwargs):
            raise NotImplementedError(name)
        return method

async def connect():
    return Skeleton()

def make_store(clock, source, **options):
    return Store(connect, name="skeleton", random=source, **options)

CAPABILITIES = {word: Unsupported("not begun") for word in CAPABILITIES} | {"listen": Supported()}

def pytest_alkstore_register(registry):
    registry.register(InProcessColumn(
        "skeleton", version="0", contract="1.0", capabilities=CAPABILITIES, make_store=make_store))
"""


class Author(Protocol):
    """A directory with a conftest.py."""

    path: Path

    def pytest(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run pytest there; warnings are errors."""


ALONE = {"OPENBLAS_NUM_THREADS": "1"}
"""A plugin of pytest's imports numpy where it is there, whose threads keep the suite from forking."""


class _Author:
    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", *arguments],
            cwd=self.path,
            env={**os.environ, **ALONE, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def author(tmp_path: Path) -> Author:
    (tmp_path / "conftest.py").write_text(SKELETON, "utf-8")
    # Without it pytest-asyncio warns in every project, and warnings are errors here.
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n", "utf-8")
    return _Author(tmp_path)
