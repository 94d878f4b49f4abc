"""Every block of Python in the documentation is executed, so that no page shows what does not run.

The blocks of a page run in order in one namespace, each as at the asyncio prompt: ``await`` stands where it likes. What
a page needs but does not want to show stands before its block in a comment that begins with ``<!-- python``.

A page that opens ``postgresql:///shop`` gets a database on a throw-away server, and its blocks of SQL are executed there
too, by the superuser. It is left out where there is no server to be had.
"""

import ast
import asyncio
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import asyncpg
import pytest

from alkstore_pg import contract_dsn, schema
from alkstore_pg.session import Schema

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")])

OPENING = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})\s*(?P<language>[^\s`]*)")
SETUP = "<!-- python"
FILE = "<!-- file "
"""Before a block that is a file of its own: test_followed_pages.py writes it, and runs the commands that use it."""
SQL = ("sql", "postgresql")  # the second for what the highlighter takes for no SQL
OTHER_LANGUAGES = {
    *("bash", "console", "dockerfile", "ini", "json", "lua", "mermaid", *SQL, "text", "toml", "yaml"),
}
DIRECTIVES = {"eval-rst", "toctree"}
"""What Sphinx reads: the first is the reference's, which test_reference.py looks at."""

NORMATIVE = ROOT / "docs" / "contract.md"
IN_MEMORY = {'"sqlite:///app.db"': '"mem://"', "delay=5": "delay=0"}
"""The contract's own example is text that only its founder changes: it is run on the engine at hand, without waiting."""

SHOP = re.compile(r"(?<=(?:stgresql|\+asyncpg|\+psycopg):///)shop\b")
"""The database that pages name; a server that somebody uses may have one of that name."""


@dataclass(frozen=True)
class Block:
    line: int
    source: str
    language: str = "python"


def blocks(text: str, *languages: str) -> Iterator[Block]:
    """Give the Python of a page, hidden and shown, in order, and what is in other languages of these."""
    lines = iter(enumerate(text.splitlines(), start=1))
    is_file = False
    for number, line in lines:
        if line.strip() == SETUP:
            yield Block(number, "\n".join(_until("-->", lines)))
        elif line.startswith(FILE):
            is_file = True
        elif found := OPENING.match(line):
            body = list(_until(found["fence"], lines))
            if is_file:
                is_file = False
            elif found["language"] in ("python", *languages):
                source = "\n".join(part.removeprefix(found["indent"]) for part in body)
                yield Block(number, source, found["language"])
            else:
                assert found["language"].strip("{}") in OTHER_LANGUAGES | DIRECTIVES, (
                    f"line {number}: a code block is ```python, which is run, or one of {sorted(OTHER_LANGUAGES)}"
                )


def _until(end: str, lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    for _, line in lines:
        if line.strip() == end:
            return
        yield line
    raise AssertionError(f"a block is not closed by {end}")


def execute(page: Path, module: ModuleType, dsn: str | None = None) -> None:
    text = page.read_text("utf-8")
    if page == NORMATIVE:
        for shown, run in IN_MEMORY.items():
            text = text.replace(shown, run)
    if dsn is not None:
        text = SHOP.sub(contract_dsn.database(dsn), text)
    with asyncio.Runner() as runner:
        for block in blocks(text, *(SQL if dsn is not None else ())):
            if dsn is not None and block.language in SQL:
                module.__dict__["rows"] = runner.run(_query(dsn, block.source))
                continue
            # Lines count from the page's top, so that a traceback points into the page.
            source = "\n" * block.line + block.source
            code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, module.__dict__))
            else:
                exec(code, module.__dict__)


async def _query(dsn: str, sql: str) -> object:
    """Run what stands in one block: a query, or any number of commands, which give no rows."""
    connection = await asyncpg.connect(dsn)
    try:
        return await (connection.fetch if sql.startswith(("SELECT", "WITH")) else connection.execute)(sql)
    except asyncpg.PostgresError as error:
        raise AssertionError(f"{error} in {sql}") from error
    finally:
        await connection.close()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """A module of the page's own, in an empty folder: what dataclasses and typed payloads look names up in."""
    monkeypatch.chdir(tmp_path)
    made = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", made)
    return made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_of_a_page_runs(page: Path, module: ModuleType, request: pytest.FixtureRequest) -> None:
    if page == NORMATIVE:
        _give_the_contract_its_free_names(module)
    is_on_server = any(SHOP.search(block.source) for block in blocks(page.read_text("utf-8")))

    execute(page, module, request.getfixturevalue("shop") if is_on_server else None)


def _give_the_contract_its_free_names(module: ModuleType) -> None:
    import alkstore

    stop = alkstore.StopToken()

    async def send(payload: object) -> None:
        stop.cancel()

    module.__dict__.update(stop=stop, send=send)


def test_blocks_share_a_namespace_and_may_await(module: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- python\nimport asyncio\n-->\n"
        "```python\nvalue = await asyncio.sleep(0, 1)\n```\n"
        "```text\nnot python\n```\n"
        "<!-- file app.py -->\n```python\nvalue = not_here\n```\n"
        "1. indented in a list\n\n   ```python\n   value += 1\n   ```\n",
        "utf-8",
    )

    execute(page, module)

    assert module.__dict__["value"] == 2


def test_sql_runs_on_the_server_of_a_page_that_names_the_shop(
    module: ModuleType, tmp_path: Path, shop: str
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nurl = 'postgresql:///shop'\n```\n"
        "```sql\nCREATE TABLE person (name text); INSERT INTO person VALUES ('ada');\n```\n"
        "```sql\nSELECT name FROM person;\n```\n"
        "```python\nnames = [row['name'] for row in rows]\n```\n",
        "utf-8",
    )

    execute(page, module, shop)

    assert module.__dict__["names"] == ["ada"]
    assert module.__dict__["url"] == f"postgresql:///{contract_dsn.database(shop)}"


def test_the_grants_on_the_page_are_those_that_the_command_prints() -> None:
    page = (ROOT / "docs" / "pg.md").read_text("utf-8")

    assert schema.grants(Schema("alkstore"), "shop_run") in page


def test_a_failing_block_points_to_its_line_in_the_page(module: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\n1 / 0\n```\n", "utf-8")

    with pytest.raises(ZeroDivisionError) as caught:
        execute(page, module)

    assert (caught.traceback[-1].path, caught.traceback[-1].lineno + 1) == (page, 4)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```py\n1\n```\n", "```python, which is run"),
        ("```python\n1\n", "not closed"),
        ("```\n1\n```\n", "line 1"),
    ],
)
def test_a_block_that_would_escape_is_refused(text: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(problem)):
        list(blocks(text))


LINK = re.compile(r"\]\((?!https?:|mailto:|#)(?P<target>[^)#\s]+)(#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_to_a_file_finds_it(page: Path) -> None:
    targets = [found["target"] for found in LINK.finditer(page.read_text("utf-8"))]

    assert [target for target in targets if not (page.parent / target).exists()] == []
