"""Which storage a command works on, and what its errors mean for the exit code."""

import asyncio
import functools
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import parse_qsl

import click

from alkstore import opening
from alkstore.cli import INTERRUPTED, UNREACHABLE, USAGE
from alkstore.errors import AlkstoreError, Closed, DatabaseError, SchemaMismatch
from alkstore.hookspecs import EngineRegistration
from alkstore.store import Store

__all__ = [
    "Failure",
    "Storage",
    "failure",
    "is_given",
    "json_option",
    "optional_storage",
    "options_of",
    "options_option",
    "run",
    "stopped",
    "storage_options",
]

PLACES: Final = frozenset({"host", "hostaddr", "port", "dbname", "database", "schema", "service"})
"""What in a URL's query says where. The rest says how to get there, and may be a password."""

TEXTS: Final = frozenset({"worker_id", "schema", "listener_dsn", "durability"})
"""Options of core and of its engines that are text, whatever it looks like."""

# Within what a float holds, and far below the 4,300 digits that int() refuses.
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,300}")
_FRACTION: Final = re.compile(r"[+-]?(?:[0-9]{1,300}\.?[0-9]{0,300}|\.[0-9]{1,300})(?:[eE][+-]?[0-9]{1,3})?")

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


class Failure(click.ClickException):
    """Ends the command with one line and an exit code."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click itself assigns it so


@dataclass(frozen=True, slots=True)
class Storage:
    """What ``--url``, ``--schema`` and ``--option`` say. Its text shows no password."""

    url: str
    schema: str | None
    more: Mapping[str, object]

    def __repr__(self) -> str:
        return f"Storage({self.shown})"

    @property
    def shown(self) -> str:
        """The URL without what may be a password."""
        return opening.shown(self.url).strip("'\"")

    @property
    def options(self) -> dict[str, object]:
        """What the engine is given beside the URL."""
        return {**self.more, **({} if self.schema is None else {"schema": self.schema})}

    def place(self) -> dict[str, str | None]:
        """Say where it is, as far as it may be written down: the same for another password or size of the pool.

        Raises:
            Failure: There is no such engine, or it does not take the URL or an option.
        """
        try:
            registration, url = self.found()
            store = registration.open(url, self.options)
        except AlkstoreError as error:
            raise failure(error) from error
        asked = sorted(pair for pair in parse_qsl(self.url.partition("?")[2]) if pair[0] in PLACES)
        schema = self.options.get("schema")
        return {
            "storage": self.shown,
            "schema": None if schema is None else str(schema),
            # The engine knows what the URL leaves out: the folder of a relative path, the host that PGHOST names.
            "place": " ".join([store._label, *(f"{name}={value}" for name, value in asked)]),
        }

    def found(self) -> tuple[EngineRegistration, str]:
        """Give the engine, and the URL as it takes it.

        Raises:
            InvalidArgument: There is no such engine, or it has no such option.
            UsageError: An option is none that text can give.
        """
        if "observers" in self.more:  # every engine takes them, and the command gives its own
            raise click.UsageError("--option cannot give observers, which are functions of Python")
        return opening.find(self.url, self.options)

    def open(self, **more: object) -> Store:
        """Make a store that does what an application's does: it makes what the storage lacks. Raises as `found`."""
        self.found()  # or --option url=... would end as a mistake in the call below
        return opening.open(self.url, **self.options, **more)

    @asynccontextmanager
    async def looked_at(self, **more: object) -> AsyncIterator[Store]:
        """Open a store without making anything: whoever looks, perhaps by a wrong name, is not to leave tables behind.

        Raises:
            Failure: The storage is not prepared.
        """
        registration, url = self.found()
        if registration.migration_sql is not None and await registration.migration_sql(
            url, self.options, None
        ):
            where = "the name is" if self.schema is None else f"its name and --schema {self.schema} are"
            raise Failure(
                f"{self.shown} has no tables of alkstore yet, or older ones; if {where} right, alkstore migrate makes them",
                UNREACHABLE,
            )
        async with self.open(**more) as store:
            yield store


def storage_options(command: F) -> F:
    """Give a command ``--url``, ``--schema`` and ``--option``, which it gets as one `Storage`."""

    def must(storage: Storage | None) -> Storage:
        if storage is None:
            raise click.UsageError("which storage is meant? give --url, or set ALKSTORE_URL")
        return storage

    return _with_storage(command, must)


def optional_storage(command: F) -> F:
    """As `storage_options`, for a command that may do without: it gets None where nothing is said."""
    return _with_storage(command, lambda storage: storage)


def _with_storage(command: F, choose: Callable[[Storage | None], Storage | None]) -> F:
    @functools.wraps(command)
    def with_storage(
        *arguments: Any, url: str | None, schema: str | None, options: Sequence[str], **named: Any
    ) -> object:
        # Those of the environment alone are a default for a storage, as ALKSTORE_URL is: nobody asks for them without one.
        more = options_of(options) if url or is_given("options") else {}
        storage = choose(Storage(url, schema, more) if url else None)
        return command(*arguments, storage=storage, **named)

    return _url(_schema(options_option(with_storage)))  # type: ignore[return-value]  # what is decorated keeps its other parameters


_url = click.option(
    "--url",
    envvar="ALKSTORE_URL",
    metavar="URL",
    help="Which storage, as alkstore.open takes it.  [ALKSTORE_URL]",
)
_schema = click.option(
    "--schema",
    envvar="ALKSTORE_SCHEMA",
    help="The schema of a database that holds the store.  [ALKSTORE_SCHEMA; else the engine's]",
)

options_option = click.option(
    "--option",
    "options",
    envvar="ALKSTORE_OPTIONS",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the engine's store, as in statement_cache_size=0; once for each.  [ALKSTORE_OPTIONS]",
)


def options_of(given: Sequence[str]) -> dict[str, object]:
    """Read what ``--option`` was given: a number, ``true``, ``false``, or else text.

    What an engine takes as text though it looks like one of those, as a name of digits, stands in double quotes; of the
    options in `TEXTS` everybody knows that they are text, and their quotes are their own.
    """
    options: dict[str, object] = {}
    for number, each in enumerate(given, 1):
        name, separator, value = each.partition("=")
        if not separator or not name.isidentifier():
            # Not shown: it may be a URL with a password in it, whose option's name was forgotten.
            raise click.UsageError(
                f"--option takes NAME=VALUE, as in statement_cache_size=0; number {number} of those given is none"
            )
        if name in options:
            raise click.UsageError(f"--option {name} is given twice")
        options[name] = value if name in TEXTS else _value(value)
    return options


def _value(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1]
    # Python's own readers take 1_0, digits of other scripts and nan too, which nobody means by them here.
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _FRACTION.fullmatch(text) else text


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON Lines: one object a line.")


def is_given(name: str) -> bool:
    """Whether an option stands on the command line, and not in the environment alone."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; what people can mend is one line and an exit code, what is a bug keeps its traceback."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        stopped()
    except AlkstoreError as error:
        raise failure(error) from error
    except ExceptionGroup as group:
        _, others = group.split(AlkstoreError)
        if others is not None:
            raise
        raise failure(*_leaves(group)) from group


def stopped() -> NoReturn:
    """End as a command does that Ctrl-C ended."""
    click.echo("stopped by Ctrl-C", err=True)
    sys.exit(INTERRUPTED)


def failure(*errors: BaseException) -> Failure:
    """Say what went wrong, and whose it is to mend: the storage's, or what was asked for."""
    is_storage = any(isinstance(error, (DatabaseError, SchemaMismatch, Closed)) for error in errors)
    return Failure("; ".join(map(str, errors)), UNREACHABLE if is_storage else USAGE)


def _leaves(group: ExceptionGroup[Exception]) -> list[Exception]:
    found: list[Exception] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, ExceptionGroup) else [error]
    return found
