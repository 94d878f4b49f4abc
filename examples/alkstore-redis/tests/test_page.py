"""What the documentation shows and says of this engine is so."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

EXAMPLE = Path(__file__).parents[1]
PAGE = EXAMPLE.parents[1] / "docs" / "writing-an-engine.md"
SOURCE = EXAMPLE / "src" / "alkstore_redis"

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def lines(file: Path) -> int:
    """Count lines of code: without blank ones, comments and docstrings."""
    text = file.read_text("utf-8")
    if file.suffix == ".lua":
        return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("--"))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {
        at for token in tokens if token.type not in LAYOUT for at in range(token.start[0], token.end[0] + 1)
    }
    return len(code - set(_docstrings(ast.parse(text))))


def _docstrings(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def counted() -> dict[str, int]:
    """Give the lines of code as the README counts them."""
    python = {file.name: lines(file) for file in SOURCE.glob("*.py")}
    column = [python.pop(name) for name in ("contract.py", "contract_server.py")]
    lua = sum(lines(file) for file in (SOURCE / "lua").glob("*.lua"))
    whole = sum(python.values()) + lua
    return {**python, "lua/": lua, "together": whole, "contract.py`, `contract_server.py": sum(column)}


def test_the_scripts_that_the_page_shows_are_the_engines() -> None:
    folder = files("alkstore_redis") / "lua"
    script = "\n".join(file.read_text("utf-8") for file in folder.iterdir())

    shown = re.findall(r"^```lua\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)

    assert shown
    assert [part for part in shown if part not in script] == []


def test_the_engine_can_be_read_in_one_sitting() -> None:
    assert counted()["together"] < 600


def test_the_readme_and_the_page_count_its_lines() -> None:
    rows = re.findall(r"^\| (.*?) \| (\d+) \|", (EXAMPLE / "README.md").read_text("utf-8"), re.MULTILINE)
    said = re.search(r"under 600 lines of code, (\d+) of Python and (\d+) of Lua", PAGE.read_text("utf-8"))

    assert {name.strip("`"): int(number) for name, number in rows} == counted()
    assert said is not None
    assert [int(number) for number in said.groups()] == [
        counted()["together"] - counted()["lua/"],
        counted()["lua/"],
    ]
