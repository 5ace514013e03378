"""`/healthz`, `/readyz` and `/metrics`."""

from http import HTTPStatus
from typing import Any, Final

from litestar import Response, Router, get
from litestar.di import NamedDependency as Given
from litestar.openapi import ResponseSpec

from meshfleet.db import Database
from meshfleet.rest import Health, NotReady, ReadinessReason, Ready
from meshfleet.service.devices import summary
from meshfleet.service.metrics import METRICS_MEDIA_TYPE, Metrics
from meshfleet.service.readiness import Readiness

_UNAVAILABLE: Final = HTTPStatus.SERVICE_UNAVAILABLE


@get("/healthz")
async def tell_health() -> Health:
    """Tell that the process is up."""
    return Health(status="ok")


@get("/readyz", responses={_UNAVAILABLE: ResponseSpec(NotReady, description="Not ready, with the reasons.")})
async def tell_readiness(database: Given[Database], readiness: Given[Readiness]) -> Response[Ready]:
    """Tell whether the service does its work, and if not, why."""
    reasons = await readiness.list_reasons(database)
    return _not_ready(reasons) if reasons else Response(Ready(status="ready"))


def _not_ready(reasons: tuple[ReadinessReason, ...]) -> Response[Any]:
    return Response(NotReady(status="unavailable", reasons=reasons), status_code=_UNAVAILABLE)


@get("/metrics", media_type=METRICS_MEDIA_TYPE)
async def tell_figures(metrics: Given[Metrics], database: Given[Database]) -> Response[bytes]:
    """Tell figures of the service and the fleet, for Prometheus."""
    connected, disconnected = await database.read(summary.count_connected_devices)
    return Response(metrics.render(connected, disconnected), media_type=METRICS_MEDIA_TYPE)


router = Router("/", route_handlers=[tell_health, tell_readiness, tell_figures], tags=["Operations"])
