import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from alkstore_pg import contract_dsn, contract_server
from alkstore_pg.contract_server import Server

PACKAGE = """\
[project]
name = "{name}"
version = "1.2.3"
requires-python = ">=3.11"
dependencies = {dependencies}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A sound workspace of two packages, to break in one way a test."""
    root = tmp_path / "workspace"
    _write(root / "pyproject.toml", '[project]\nrequires-python = ">=3.11"\n')
    _write(root / "LICENSE", "free\n")
    _write(root / "docs/contract.md", "# The contract\n")
    _write(root / "requirements/constraints.txt", "msgspec==0.20 ; os_name == 'posix'\n")
    _write(
        root / "uv.lock",
        '[[package]]\nname = "msgspec"\nversion = "0.20"\nsource = { registry = "r" }\n'
        '[[package]]\nname = "a-core"\nversion = "1.2.3"\nsource = { editable = "packages/a-core" }\n',
    )
    for name, dependencies in [("a-core", '["msgspec>=0.20"]'), ("a-mem", '["a-core==1.2.3"]')]:
        folder = root / "packages" / name
        _write(folder / "pyproject.toml", PACKAGE.format(name=name, dependencies=dependencies))
        _write(folder / "LICENSE", "free\n")
        _write(folder / "src" / name.replace("-", "_") / "__init__.py", "")
        _write(folder / "src" / name.replace("-", "_") / "py.typed", "")
    return root


@pytest.fixture
def repository(workspace: Path) -> Path:
    """The same under git, which says what files are the project's."""
    try:
        subprocess.run(["git", "init", "--quiet", str(workspace)], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    return workspace


@pytest.fixture
def server() -> Server:
    if advice := contract_server.available():
        pytest.skip(advice)
    return contract_server.shared()


@pytest.fixture
def shop(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty database, which a DSN names that says no more than its name: the variables of libpq say the rest."""
    name = f"alkstore_docs_{os.getpid()}"
    dsn, address = server.create_database(name), contract_dsn.address(server.dsn)
    given = {"PGHOST": address.host, "PGPORT": str(address.port), "PGUSER": contract_dsn.user(dsn)}
    for variable, value in (given | {"PGDATABASE": name}).items():
        monkeypatch.setenv(variable, value)
    if password := urlsplit(dsn).password:
        monkeypatch.setenv("PGPASSWORD", unquote(password))
    yield dsn
    server.drop_database(name)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
