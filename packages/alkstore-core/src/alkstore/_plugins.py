"""Finding the engines that are installed: the one place that talks to pluggy."""

import functools
import importlib.metadata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pluggy

from alkstore import hookspecs
from alkstore.errors import InvalidArgument, show
from alkstore.hookspecs import GROUP, EngineRegistration
from alkstore.version import CONTRACT_VERSION

__all__ = ["Broken", "Found", "Installed", "discover", "find_engine"]

PACKAGES: Final = {
    "mem": "alkstore-mem",
    "sqlite": "alkstore-sqlite",
    "postgresql": "alkstore-pg",
    "postgres": "alkstore-pg",
}
"""Which distribution brings the engine of a scheme, for people who have not installed it yet."""


@dataclass(frozen=True, slots=True)
class Found:
    """A registration and the distribution that it really came from."""

    distribution: str
    registration: EngineRegistration


@dataclass(frozen=True, slots=True)
class Broken:
    """An entry point that gave no registration, and why."""

    distribution: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Installed:
    """Every engine of this environment, in the order of their distributions' names."""

    engines: tuple[Found, ...]
    broken: tuple[Broken, ...]

    def of_scheme(self, scheme: str) -> Sequence[Found]:
        """Give the engines that claim a scheme: more than one is for the caller to refuse."""
        return [found for found in self.engines if scheme in found.registration.schemes]


def discover() -> Installed:
    """Load every entry point of the group ``alkstore`` and ask each for its registration.

    Pluggy's own loader stops at the first entry point that fails, and passes over the second of two that share a
    name, which would hide the conflict; so each is loaded by itself and registered under its distribution's name.
    """
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    engines: list[Found] = []
    broken: list[Broken] = []
    for point in _entry_points():
        distribution = point.dist.name if point.dist is not None else point.value
        try:
            engines += [Found(distribution, it) for it in _register(manager, point, distribution)]
        except (
            Exception
        ) as error:  # whatever a foreign module raises at import must not take other engines along
            broken.append(Broken(distribution, error))
    return Installed(tuple(engines), tuple(broken))


def _entry_points() -> Iterable[importlib.metadata.EntryPoint]:
    points = importlib.metadata.entry_points(group=GROUP)
    return sorted(points, key=lambda point: (point.dist.name if point.dist is not None else "", point.name))


def _register(
    manager: pluggy.PluginManager, point: importlib.metadata.EntryPoint, distribution: str
) -> Sequence[EngineRegistration]:
    plugin = point.load()
    if manager.is_registered(plugin):
        return ()  # two entry points of one module are one engine
    others = manager.get_plugins()
    manager.register(plugin, name=f"{distribution}:{point.name}")
    # Only this plugin is asked: a hook that raises would otherwise take the answers of the others along.
    answers: list[object] = manager.subset_hook_caller("alkstore_engine", remove_plugins=others)()
    registrations = [answer for answer in answers if isinstance(answer, EngineRegistration)]
    if not registrations or len(registrations) < len(answers):
        raise TypeError(f"entry point {point.name!r} gives no EngineRegistration from alkstore_engine()")
    return registrations


@functools.cache
def _installed() -> Installed:
    return discover()


def find_engine(scheme: str) -> EngineRegistration:
    """Give the one engine of a lower-case URL scheme.

    Raises:
        InvalidArgument: No engine, or two, claim the scheme, or the engine honours another major version.
    """
    if not _installed().of_scheme(scheme):
        _installed.cache_clear()  # it may have been installed since the last look
    return choose(_installed(), scheme)


def choose(installed: Installed, scheme: str) -> EngineRegistration:
    """Decide which of the installed engines opens a scheme; raises as `find_engine`."""
    claimants = installed.of_scheme(scheme)
    if not claimants:
        error = InvalidArgument(_unknown(installed, scheme))
        raise error from (installed.broken[0].error if installed.broken else None)
    if len(claimants) > 1:
        names = " and ".join(found.distribution for found in claimants)
        raise InvalidArgument(f"scheme {show(scheme)} is claimed by {names}; uninstall all but one")
    registration = claimants[0].registration
    if registration.contract_version.partition(".")[0] != CONTRACT_VERSION.partition(".")[0]:
        raise InvalidArgument(
            f"engine {registration.package} was built for contract {registration.contract_version}, "
            f"this alkstore-core honours {CONTRACT_VERSION}; install versions of one major"
        )
    return registration


def _unknown(installed: Installed, scheme: str) -> str:
    schemes = sorted({name for found in installed.engines for name in found.registration.schemes})
    have = f"installed: {', '.join(schemes)}" if schemes else "no engine is installed"
    plain, _, driver = scheme.partition("+")
    package = PACKAGES.get(plain)
    advice = f"; install {package}" if package is not None else f"; alkstore's own are {', '.join(PACKAGES)}"
    if driver and plain in schemes:  # a URL of SQLAlchemy's, which names a driver too
        advice = f"; the store has a driver of its own: write {plain}://"
    failures = "".join(
        f"; {it.distribution} is there but failed to load ({type(it.error).__name__}: {it.error})"
        for it in installed.broken
    )
    return f"no engine for scheme {show(scheme)} ({have}){advice}{failures}"
