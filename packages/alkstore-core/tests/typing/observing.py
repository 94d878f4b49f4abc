"""Observers as a user would write them: only type-checked, never run."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

import alkstore
import alkstore.logs
import alkstore.otel
import alkstore.prometheus
from alkstore.observing import Carrier, Destination, Fact, JobHandled, JobSettled, Observer


def count(fact: Fact) -> str | None:
    match fact:
        case JobSettled(destination=destination, outcome="dead", job=job):
            return f"{destination.kind} {destination.name} {job.id}"
        case JobHandled(seconds=seconds, error=None):
            return f"{seconds:.3f}"
        case _:
            return None


class Tenant:
    def __call__(self, fact: Fact) -> None: ...

    @contextmanager
    def sending(self, destination: Destination, count: int) -> Generator[Mapping[str, str], None, None]:
        yield {"x-tenant": destination.name * count}

    def sent(self, ids: Sequence[int]) -> None: ...

    @contextmanager
    def handling(self, job: alkstore.Job) -> Generator[None, None, None]:
        yield


async def observed(event: alkstore.StreamEvent) -> bytes:
    carrier: Carrier = Tenant()
    telemetry = alkstore.otel.Telemetry()
    metrics = alkstore.prometheus.Metrics(most=50)
    observers: list[Observer] = [print, count, alkstore.logs.log, carrier, telemetry, metrics]
    async with alkstore.open("mem://", observers=observers) as store:
        with metrics.gauges(store) as gauges, telemetry.handling(event) as span:
            span.set_attribute("rows", 7)
            return await gauges.text()
