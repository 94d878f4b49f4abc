"""How Sphinx builds the pages of this folder: ``nox -s docs``."""

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from docutils.nodes import Element, reference
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.util.nodes import make_refnode

import alkstore.engine
import alkstore.hookspecs
import alkstore.sync
from alkstore.diagnosis import Diagnosis
from alkstore.migrations import Migration
from alkstore.sync.proxy import Call, Changed

project = "alkstore"
copyright = "alkstore contributors"  # the name that Sphinx reads

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence"]
# Headings can be linked to from another page.
myst_heading_anchors = 3
# Pages link to files of the repository that are no pages; tests/test_docs.py checks that they exist.
suppress_warnings = ["myst.xref_missing"]

exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "alkstore"

# ---------------------------------------------------------------- reference

# In docstrings `Queue.enqueue` is a name, and with -n one that is not there ends the build.
default_role = "py:obj"
autodoc_default_options = {
    "members": True,
    # What a value has from tuple or an error from Exception says nothing of alkstore.
    "inherited-members": "object, tuple, Sequence, BaseException, Enum, Protocol, Generic",
}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autoclass_content = "both"
python_use_unqualified_type_names = True

# What others document elsewhere, and what stands in signatures without being anybody's to import.
nitpick_ignore_regex = [
    (
        "py:.*",
        r"(_?asyncio|collections\.abc|contextlib|datetime|enum|os|pathlib|random|typing|asyncpg|aiosqlite|msgspec|django)\b.*",
    ),
    ("py:class", r"(.*\.)?[A-Z]"),  # type variables
]

MADE_ELSEWHERE: Final = re.compile(
    r"alkstore(\.sync)?\.(EventReceiver|Job|JobHandle|Lock|LockInfo|Outbox|Queue|QueueStats|Schedule|Stream|StreamEvent)"
    r"|alkstore(\.sync)?\.(Tx|Wake|WakeReceiver)|alkstore\.sync\.Store|alkstore_(sqlite|pg)\.\w+Tx"
    r"|alkstore_contract_suite\.(context\.Context|report_values\.\w+)"
)
"""What others make: how they are constructed is nobody's business."""

SHORT: Final = (
    *("alkstore.", "alkstore.engine.", "alkstore.engine.Engine.", "alkstore.watch.", "alkstore.testing."),
    *("alkstore.records.", "alkstore_contract_suite."),
)
"""Where a name of a docstring may stand, beside the module of that docstring."""

ROW: Final = re.compile(r"\b(?P<area>[A-Z]+)-\d\d\b")
"""A row of the contract, as in ``Rows: Q-05``."""

NOISE: Final = re.compile(r"Alias for field number \d+|Create new instance of .*")
"""What Python says of every named tuple."""

NAPOLEON: Final[Any] = Config()  # its own kind of configuration, of which its types know nothing

# The hooks' module cannot import these, since they import it; here they are needed to tell which Store is meant.
vars(alkstore.hookspecs).update(Diagnosis=Diagnosis, Migration=Migration, Store=alkstore.Store)


def _areas() -> Iterator[tuple[str, str]]:
    """Give the areas of the contract, each with its heading's anchor."""
    for line in (Path(__file__).parent / "contract.md").read_text("utf-8").splitlines():
        if found := re.match(r"### ((?P<area>[A-Z]+): .*)", line):
            yield found["area"], re.sub(r"[^\w -]", "", found[1]).lower().replace(" ", "-")


ERRORS: Final = re.compile(r"[A-Z]\w+(, [A-Z]\w+)*")

AREAS: Final = dict(_areas())


class Docstring(GoogleDocstring):
    """Our sections: what is given is a sentence, and several errors may be raised for one reason."""

    def _consume_returns_section(self, preprocess_types: bool = False) -> list[tuple[str, str, list[str]]]:
        lines = self._dedent(self._consume_to_next_section())
        return [("", "", lines)] if lines else []

    def _parse_raises_section(self, section: str) -> list[str]:
        lines = [":Raises:"]
        for name, _, text in self._consume_fields(parse_type=False, prefer_type=False):
            if not text or not ERRORS.fullmatch(name):
                lines += self._format_block("    ", [": ".join(filter(None, [name, " ".join(text)])), ""])
                continue
            raised = ", ".join(f":py:exc:`{each}`" for each in name.split(", "))
            lines += self._format_block("    * ", [f"{raised} – {text[0]}", *text[1:]])
        return [*lines, ""]


def _section(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Read the sections of a docstring, and link its rows to the contract."""
    # Elsewhere a colon in the first line would part a type from its text, and our properties are sentences.
    as_what: Any = "function" if what in ("attribute", "data", "property") else what
    lines[:] = Docstring(lines, NAPOLEON, app, as_what, name, obj, options).lines()
    lines[:] = [ROW.sub(_linked, line) for line in lines if not NOISE.fullmatch(line)]


def _linked(row: re.Match[str]) -> str:
    anchor = AREAS.get(row["area"])
    return row[0] if anchor is None else f"`{row[0]} <../contract.html#{anchor}>`__"


def _signature(
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str, str | None] | None:
    if what == "class" and (MADE_ELSEWHERE.fullmatch(name) or getattr(obj, "_is_protocol", False)):
        return "", None
    if (
        signature and "<factory>" in signature
    ):  # which is no Python, so the types around it would not be links
        return signature.replace("<factory>", "..."), returns
    return None


def _find(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: Element
) -> reference | Element | None:
    """Find the name of a docstring where its reader would: in alkstore itself, or in the records of the seam.

    A name that is there but has no place in the reference is shown without a link.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    objects = env.domains.python_domain.objects
    for name in (target, *(prefix + target for prefix in SHORT)):
        if (found := objects.get(name)) is not None:
            return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, text, name)
    return text if any(_is_there(prefix + target) for prefix in ("", *SHORT)) else None


def _is_there(name: str) -> bool:
    """Whether a dotted name can be imported, wherever the module in it ends."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        try:
            for part in parts[cut:]:
                value = getattr(value, part)
        except AttributeError:
            return False
        return True
    return False


def _as_methods() -> None:
    """Turn the methods that are made of the async ones into plain functions, which is how they are called."""
    for cls in map(vars(alkstore.sync).get, alkstore.sync.__all__):
        for name, value in list(vars(cls).items()) if isinstance(cls, type) else ():
            call = value._call if isinstance(value, Changed) else value
            if isinstance(call, Call):
                setattr(cls, name, _plain(call._method))


def _plain(method: Callable[..., object]) -> Callable[..., object]:
    def plain(*args: object, **kwargs: object) -> None: ...

    functools.update_wrapper(plain, method)
    del plain.__wrapped__  # type: ignore[attr-defined]  # or it would be shown as a coroutine function
    vars(plain)["__signature__"] = inspect.signature(method)
    return plain


def _engines_first() -> None:
    """Show the Protocols of the seam before the records that they take and give: here they stand in one alphabet."""
    seam = vars(alkstore.engine)
    alkstore.engine.__all__.sort(key=lambda name: not getattr(seam[name], "_is_protocol", False))


def setup(app: Sphinx) -> None:
    """Connect what is said above."""
    _as_methods()
    _engines_first()
    app.connect("autodoc-process-docstring", _section)
    app.connect("autodoc-process-signature", _signature)
    app.connect("missing-reference", _find)
