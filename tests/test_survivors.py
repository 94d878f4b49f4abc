"""The list of faults that no test finds is whole, of today's code, and what the page shows."""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from mutation_survivors import FILE, KINDS, PAGE, Key, Known, page, read

ENTRY = """
modules = ["alkstore.backoff"]

[[survivor]]
module = "alkstore.backoff"
function = "delay"
fault = "NumberReplacer"
line = "return 1"
becomes = "return 2"
kind = "equal"
reason = "nobody asks"
"""


def listed() -> Known:
    return read(FILE.read_text("utf-8"))


def lines_of(key: Key) -> list[str]:
    """Give the lines of a function, without indentation."""
    spec = find_spec(key.module)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text("utf-8")
    tree: ast.AST = ast.parse(text)
    for name in key.function.split("."):
        tree = next(
            node
            for node in ast.iter_child_nodes(tree)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        )
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    return [line.strip() for line in text.splitlines()[tree.lineno - 1 : tree.end_lineno]]


def test_the_page_shows_the_list() -> None:
    assert PAGE.read_text("utf-8") == page(listed()), "run `python tools/mutation.py --page`"


def test_every_entry_is_of_a_line_that_is_still_there() -> None:
    gone = [
        key for key in listed().reasons if not set(key.line.split(" / ")).issubset(lines_of(key)) and key.line
    ]

    assert gone == []


def test_an_entry_is_read_with_its_reason() -> None:
    key = Key("alkstore.backoff", "delay", "NumberReplacer", "return 1", "return 2")

    known = read(ENTRY)

    assert (known.modules, known.reasons) == (["alkstore.backoff"], {key: ("equal", "nobody asks")})
    assert "| `delay` | `` return 1 `` | `` return 2 `` | equal: nobody asks |" in page(known)
    assert f"| equal | 1 | {KINDS['equal']} |" in page(known)


@pytest.mark.parametrize(
    "text",
    [
        ENTRY.replace("nobody asks", " "),
        ENTRY.replace('kind = "equal"', 'kind = "so be it"'),
        ENTRY.replace('modules = ["alkstore.backoff"]', "modules = []"),
        ENTRY + ENTRY.partition("\n\n")[2],
    ],
    ids=["no reason", "unknown kind", "module not looked at", "twice"],
)
def test_an_entry_that_explains_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="survivor must stand once, with a reason"):
        read(text)
