"""A page that shows a store: queues, jobs, streams, schedules, locks. Extra: ``alkstore-core[dashboard]``.

    application = alkstore.dashboard.app(store, token="…")

``alkstore dashboard`` serves it by itself.
"""

try:
    import jinja2 as _jinja2  # noqa: F401  # named here, or the first one that is missing would be told of as somebody else's
    import starlette as _starlette  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"alkstore.dashboard needs {error.name}: pip install 'alkstore-core[dashboard]'", name=error.name
    ) from error

from alkstore.dashboard.application import Dashboard, app
from alkstore.dashboard.witness import Witness

__all__ = ["Dashboard", "Witness", "app"]
