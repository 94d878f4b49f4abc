"""What a handler's parameters get: by their annotations, looked at once, when the worker is made."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from alkstore import payload
from alkstore.errors import InvalidArgument, show
from alkstore.job import JobHandle
from alkstore.store import Store
from alkstore.values import Job

__all__ = ["Arguments", "Source", "arguments_of"]

Source = Callable[[JobHandle], object]
"""Gives one argument for one job."""

_UNTOLD: Final = inspect.Parameter("payload", inspect.Parameter.POSITIONAL_ONLY)
"""What a function takes that does not tell: the payload."""

ANYTHING: Final = (inspect.Parameter.empty, Any, object)
"""Annotations of a payload that is taken as it was decoded."""


class Arguments:
    """The sources of a handler's arguments, by position and by name."""

    __slots__ = ("_named", "_positional")

    def __init__(self, positional: tuple[Source, ...], named: Mapping[str, Source]) -> None:
        self._positional = positional
        self._named = tuple(named.items())

    def bind(self, handle: JobHandle) -> tuple[list[object], dict[str, object]]:
        """Give the arguments for one job.

        Raises:
            CodecError: The payload does not fit the handler's type.
        """
        return (
            [source(handle) for source in self._positional],
            {name: source(handle) for name, source in self._named},
        )


def arguments_of(
    function: Callable[..., object], what: str, store: Store, resources: Mapping[type, object]
) -> Arguments:
    """Look at a handler's parameters.

    A parameter gets, by its annotation: the `Job`, the `JobHandle`, the `Store`, a resource of that type, or else the
    payload, as that type. One may be the payload; further ones keep their defaults. ``*args`` alone gets the payload.

    Raises:
        InvalidArgument: A parameter can get nothing, an annotation cannot be resolved, or no reader is known for it.
    """
    given: dict[Any, Source] = {
        Job: lambda handle: handle.job,
        JobHandle: lambda handle: handle,
        Store: lambda _: store,
        type(store): lambda _: store,
    }
    given |= {type_: _constant(resource) for type_, resource in resources.items()}
    positional: list[Source] = []
    named: dict[str, Source] = {}
    has_payload = False
    for parameter in _parameters(function, what):
        source = _known(given, parameter.annotation)
        if source is None and has_payload:
            if parameter.default is inspect.Parameter.empty:
                raise InvalidArgument(
                    f"{what} takes a second payload, {show(str(parameter))}: annotate it as Job, JobHandle, Store or "
                    f"the type of a resource, and give that to the worker in resources={{type: resource}}"
                )
            if parameter.kind is not parameter.KEYWORD_ONLY:
                break  # nothing behind it can be given by position without it
            continue
        if source is None:
            source, has_payload = (
                _payload(parameter.annotation, f"{what}, parameter {parameter.name!r}"),
                True,
            )
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = source
        else:
            positional.append(source)
    return Arguments(tuple(positional), named)


def _parameters(function: Callable[..., object], what: str) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise InvalidArgument(
            f"{what} has an annotation that cannot be resolved: {error}; import the name at run time, "
            "not under TYPE_CHECKING alone"
        ) from error
    except ValueError:  # some built-ins tell nothing of theirs
        return [_UNTOLD]
    given = list(signature.parameters.values())
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    wanted = [parameter for parameter in given if parameter.kind not in variable]
    if not wanted and given and given[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return [_UNTOLD]  # a decorator's, which hands on what it gets
    return wanted


def _known(given: Mapping[Any, Source], annotation: Any) -> Source | None:
    try:
        return given.get(annotation)
    except TypeError:  # an annotation that cannot be hashed names no type
        return None


def _constant(resource: object) -> Source:
    return lambda _: resource


def _payload(type_: Any, what: str) -> Source:
    if any(type_ is anything for anything in ANYTHING):
        return lambda handle: payload.decode(handle._record.payload)
    validate = getattr(type_, "model_validate_json", None)
    if isinstance(type_, type) and callable(validate):
        return _validated(type_, validate)
    try:
        payload.check_type(type_)
        # msgspec takes any class, for those who teach it how to read that; nobody can have taught it here.
        is_foreign = isinstance(msgspec.inspect.type_info(type_), msgspec.inspect.CustomType)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what} cannot be read from a payload: {error}") from error
    if is_foreign:
        raise InvalidArgument(
            f"{what} is neither a payload that can be read nor a resource: {show(type_)}; give the worker "
            "resources={type: resource} if it is meant to be one"
        )
    return lambda handle: payload.decode_as(handle._record.payload, type_)


def _validated(type_: type, validate: Callable[[bytes], object]) -> Source:
    # A pydantic model reads itself; whatever it raises says that the payload does not fit.
    def source(handle: JobHandle) -> object:
        try:
            return validate(handle._record.payload)
        except Exception as error:
            raise payload.misfit(type_, error) from error

    return source
