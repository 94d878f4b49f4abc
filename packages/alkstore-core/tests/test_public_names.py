import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import alkstore

SURFACE = (
    "open outside_tx Store Queue JobHandle Stream EventReceiver WakeReceiver Lock Outbox Tx StopToken",
    "Job JobState StreamEvent Wake Schedule LockInfo QueueStats EnqueueOpts ScheduleOpts",
    "AlkstoreError InvalidName ReservedName InvalidSpec InvalidArgument PayloadTooLarge CodecError LeadershipLost",
    "ClaimLost LockLost LockTimeout OffsetConflict Closed HandleConsumed InsideTransaction SchemaMismatch DatabaseError",
    "CONTRACT_VERSION __version__",
)
"""The names of contract.md: its surface, its values, its errors, its versions."""

LEFT_OUT = {"alkstore.errors": {"show"}}
"""The list of errors holds errors alone; how they show a value is core's business."""

MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(alkstore.__path__, "alkstore.")
    if not found.name.endswith(".__main__")
)


def test_the_package_exports_the_contracts_names_and_no_other() -> None:
    expected = {name for line in SURFACE for name in line.split()}

    assert set(alkstore.__all__) == expected
    assert not [name for name in expected if not hasattr(alkstore, name)]


def test_every_name_is_exported_once() -> None:
    assert len(alkstore.__all__) == len(set(alkstore.__all__))


def test_a_class_shows_the_address_that_users_import_it_from() -> None:
    classes = [value for name in alkstore.__all__ if isinstance(value := getattr(alkstore, name), type)]

    assert {value.__module__ for value in classes} == {"alkstore"}


@pytest.mark.parametrize("name", MODULES)
def test_a_modules_list_of_names_is_what_it_defines(name: str) -> None:
    module = importlib.import_module(name)
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))

    exported = _exported(tree)
    internal = LEFT_OUT.get(name, set())

    assert [found for found in exported if not hasattr(module, found)] == []
    if not _is_private(name):
        assert [
            found
            for found in _defined(tree)
            if not _is_private(found) and found not in {*exported, *internal}
        ] == []


def _exported(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def _defined(tree: ast.Module) -> list[str]:
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [node.name for node in tree.body if isinstance(node, kinds)]


def _is_private(name: str) -> bool:
    return name.rpartition(".")[2].startswith("_")
