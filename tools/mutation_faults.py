"""Small faults in a module's functions, made by Cosmic Ray, and how one is planted in a module that is loaded."""

import ast
import difflib
import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import CodeType, FunctionType
from typing import Any, Final

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from parso.python.tree import Keyword

__all__ = ["Fault", "Place", "faults", "owners", "plant"]

Place = tuple[str, int]
"""Where a function begins: its file and its first line, which is that of its first decorator."""

Spot = tuple[int, int]
"""A line, from 1, and a column, from 0."""

OPERATORS: Final = re.compile(
    r"core/(AddNot|NumberReplacer|ExceptionReplacer|ZeroIterationForLoop|Replace(True|False|And|Or|Break|Continue)With\w+"
    r"|ReplaceUnaryOperator_(Delete_Not|USub_UAdd)"
    r"|ReplaceComparisonOperator_(Lt_LtE|Lt_GtE|LtE_Lt|LtE_Gt|Gt_GtE|Gt_LtE|GtE_Gt|GtE_Lt|Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is)"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_FloorDiv|FloorDiv_Mul|Div_Mul|Mod_FloorDiv|LShift_RShift|RShift_LShift))"
)
"""One or two of each kind: the tenth replacement of a ``+`` is found by whatever finds the first."""


REMOVED: Final = {
    "expr_stmt", "atom_expr", "await_expr", "return_stmt", "raise_stmt", "del_stmt", "keyword",
}  # fmt: skip


class RemoveStatement:
    """What Cosmic Ray lacks, in the form of its operators: an assignment, a call, a return or a raise that is not there."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Spot, Spot]]:
        if node.type == "simple_stmt" and node.children[0].type in REMOVED:
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        leaf = node.children[0].get_first_leaf()
        node.children[0] = Keyword("pass", leaf.start_pos, leaf.prefix)
        return node


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of one function.

    Attributes:
        function: Where the function begins that is changed; functions within it are part of it.
        line: Where the change is.
        kind: Cosmic Ray's name of the operator.
        change: The lines that differ, as in a diff.
        source: The whole module as changed.
        name: The function's, with its class.
    """

    function: Place
    line: int
    kind: str
    change: str
    source: str
    name: str

    @property
    def described(self) -> list[str | int]:
        return [
            Path(self.function[0]).parent.name,
            Path(self.function[0]).stem,
            self.line,
            self.kind,
            self.change,
        ]

    def __str__(self) -> str:
        return ":".join(map(str, self.described[:3])) + f" {self.kind} {self.change!r}"


def faults(path: Path, order: Random) -> Iterator[Fault]:
    """Give every fault within a function of this module, in random order, but those that the compiler does not see."""
    source = path.read_text("utf-8")
    honest = _codes(source, str(path))
    bodies = {line: first for first, lines in _bodies(source) for line in lines}
    operators = {name: get_operator(name)() for name in operator_names() if OPERATORS.fullmatch(name)}
    operators["RemoveStatement"] = RemoveStatement()
    nodes = list(ast_nodes(get_ast(source)))
    known = [
        (start[0], name, occurrence)
        for name, operator in operators.items()
        for occurrence, (start, _) in enumerate(
            at for node in nodes for at in operator.mutation_positions(node)
        )
        if start[0] in bodies
    ]
    order.shuffle(known)
    for line, name, occurrence in known:
        changed = mutate_code(source, operators[name], occurrence)
        if changed is not None and _differs(changed, str(path), bodies[line], honest):
            place = (str(path), bodies[line])
            kind, function = name.removeprefix("core/"), honest[bodies[line]].co_qualname
            yield Fault(place, line, kind, _change(source, changed), changed, function)


def owners(paths: Iterable[str]) -> dict[Place, int]:
    """Give for every function of these files, nested or not, the line at which its outermost function begins."""
    found = {}
    for path in paths:
        for first, code in _codes(Path(path).read_text("utf-8"), path).items():
            found.update({(path, inner.co_firstlineno): first for inner in _within(code)})
    return found


def plant(fault: Fault) -> None:
    """Exchange the code of the function in this process, wherever it is referred to.

    Raises:
        LookupError: The module is not loaded.
    """
    path, first = fault.function
    code = _codes(fault.source, path)[first]
    # type(), since isinstance() asks the object, which may be a test's that refuses every question.
    functions = [each for each in gc.get_objects() if type(each) is FunctionType]
    place = (path, code.co_qualname, first)
    planted = [each for each in functions if _place(each.__code__) == place]
    if not planted:
        raise LookupError(f"no function is loaded from {place}")
    for function in planted:
        function.__code__ = code


def _place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _differs(changed: str, path: str, first: int, honest: dict[int, CodeType]) -> bool:
    try:
        code = _codes(changed, path)[first]
    except (SyntaxError, KeyError):
        return False
    return code != honest[first] and code.co_freevars == honest[first].co_freevars


def _codes(source: str, path: str) -> dict[int, CodeType]:
    """Give the code of every function that is within no other, by its first line."""
    return {
        code.co_firstlineno: code for code in _outermost(compile(source, path, "exec", dont_inherit=True))
    }


def _outermost(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_flags & 0x2 and not inner.co_name.startswith("<"):  # optimised: a function, no class
                yield inner
            else:
                yield from _outermost(inner)


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _within(inner)


def _bodies(source: str) -> Iterator[tuple[int, Sequence[int]]]:
    """Give the first line of every function and the lines of its body: arguments and decorators are the module's."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min(each.lineno for each in (*node.decorator_list, node))
                yield first, range(node.body[0].lineno, (node.end_lineno or 0) + 1)
            else:
                waiting.append(node)


def _change(source: str, changed: str) -> str:
    lines = difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
