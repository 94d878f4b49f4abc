"""Annotations mean the same on every Python: from 3.14 they are evaluated late, in the scope of their whole class."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCES = sorted((Path(__file__).parents[1] / "packages").glob("*/src/**/*.py"))


def shadowed(source: str) -> list[str]:
    """Give the names in annotations of a class that some method of it has too, as ``Class.method: name``."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            functions = [
                child for child in node.body if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            ]
            bound = {function.name for function in functions}
            for function in functions:
                names = {name for name in names_in_annotations(function) if name in bound}
                found += [f"{node.name}.{function.name}: {name}" for name in sorted(names)]
    return found


def names_in_annotations(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    given = [node.annotation for node in ast.walk(function.args) if isinstance(node, ast.arg)]
    for annotation in (*given, function.returns):
        if annotation is not None:
            yield from (node.id for node in ast.walk(annotation) if isinstance(node, ast.Name))


def test_no_annotation_names_what_a_method_of_its_class_shadows() -> None:
    found = {path: shadowed(path.read_text("utf-8")) for path in SOURCES}

    assert len(found) > 100
    assert {path: names for path, names in found.items() if names} == {}


def test_a_shadowed_builtin_is_found_above_and_below_the_method() -> None:
    source = (
        "class Queue:\n"
        "    def ids(self) -> list[int]: ...\n"
        "    async def list(self, *, after: int) -> tuple[int, ...]: ...\n"
        "    def put(self, ids: list[int]) -> None: ...\n"
    )

    assert shadowed(source) == ["Queue.ids: list", "Queue.put: list"]
