import ast
import importlib
import inspect
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

OPERATIONS = {
    "Store": "queue stream outbox join notify listen try_lock lock begin_tx schedule unschedule tick_schedules "
    "run_schedules supervise_schedules queues streams outboxes schedules locks aclose",
    "Queue": "name enqueue enqueue_batch claim_one claim_batch claim claims run_once get_job list sweep_expired "
    "cancel redrive purge_dead stats",
    "JobHandle": "job ack retry fail release heartbeat hold",
    "Stream": "name publish publish_batch read_since read_from_consumer save_offset reset_offset get_offset "
    "subscribe trim_to head consumers",
    "WakeReceiver": "recv try_recv recv_timeout aclose",
    "EventReceiver": "recv recv_page try_recv save aclose",
    "Lock": "name fence held renew release",
    "Outbox": "name jobs enqueue run_once run",
    "Tx": "enqueue enqueue_batch outbox_enqueue publish publish_batch notify ack save_offset get_offset read_since "
    "read_from_consumer get_job commit rollback connection",
}
"""The table of operations in contract.md. What is absent there by design is not to come in by accident."""

DEFAULTS: dict[tuple[str, str], dict[str, object]] = {
    ("Store", "lock"): {"ttl": 30, "timeout": None},
    ("Store", "notify"): {"payload": None},
    ("Store", "schedule"): {"anchor": None, "priority": 0},
    ("Queue", "list"): {"state": None, "error": None, "after": 0, "limit": 100},
    ("Queue", "claim"): {"timeout": None, "worker_id": None},
    ("Queue", "claims"): {"stop": None, "worker_id": None},
    ("Stream", "read_since"): {"limit": 100},
    ("Stream", "read_from_consumer"): {"limit": 100},
    ("Stream", "subscribe"): {"consumer": None, "after": None},
    ("EventReceiver", "recv_page"): {"limit": 500},
    ("JobHandle", "retry"): {"error": None, "delay": None},
    ("JobHandle", "heartbeat"): {"window": None},
    ("Outbox", "run"): {"concurrency": 1},
    ("Tx", "read_since"): {"limit": 100},
    ("Tx", "read_from_consumer"): {"limit": 100},
    ("Tx", "save_offset"): {"after": None},
}

LEFT_OUT = {"alkstore.errors": {"show"}}
"""The list of errors holds errors alone; how they show a value is core's business."""

OF_A_PROJECT = {"alkstore.django.admin", "alkstore.django.models"}
"""Modules that Django imports, once a project is set up; test_django.py runs one."""

MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(alkstore.__path__, "alkstore.")
    if not found.name.endswith(".__main__") and found.name not in OF_A_PROJECT
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


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_class_has_the_contracts_operations_and_no_other(name: str) -> None:
    public = {found for found in dir(getattr(alkstore, name)) if not _is_private(found)}

    assert public == set(OPERATIONS[name].split())


@pytest.mark.parametrize(("name", "operation"), DEFAULTS, ids=[".".join(each) for each in DEFAULTS])
def test_an_operation_has_the_contracts_defaults(name: str, operation: str) -> None:
    parameters = inspect.signature(getattr(getattr(alkstore, name), operation)).parameters

    wanted = DEFAULTS[name, operation]
    assert {each: parameters[each].default for each in wanted} == wanted


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
