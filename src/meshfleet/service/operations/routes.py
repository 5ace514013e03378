"""`/healthz`, `/readyz` and `/metrics`."""

from http import HTTPStatus
from typing import Any, Final

from litestar import Response, Router, get
from litestar.di import NamedDependency as Given
from litestar.openapi import ResponseSpec

from meshfleet.db import Database
from meshfleet.service.devices import summary
from meshfleet.service.operations.figures import MEDIA_TYPE, Figures
from meshfleet.service.operations.readiness import Readiness
from meshfleet.wire.rest import Health, NotReady, ReadinessReason, Ready

_UNAVAILABLE: Final = HTTPStatus.SERVICE_UNAVAILABLE


@get("/healthz")
async def tell_health() -> Health:
    """Tell that the process is up."""
    return Health(status="ok")


@get("/readyz", responses={_UNAVAILABLE: ResponseSpec(NotReady, description="Not ready, with the reasons.")})
async def tell_readiness(database: Given[Database], readiness: Given[Readiness]) -> Response[Ready]:
    """Tell whether the service does its work, and if not, why."""
    reasons = await readiness.examine(database)
    return _not_ready(reasons) if reasons else Response(Ready(status="ready"))


def _not_ready(reasons: tuple[ReadinessReason, ...]) -> Response[Any]:
    return Response(NotReady(status="unavailable", reasons=reasons), status_code=_UNAVAILABLE)


@get("/metrics", media_type=MEDIA_TYPE)
async def tell_figures(figures: Given[Figures], database: Given[Database]) -> Response[bytes]:
    """Tell figures of the service and the fleet, for Prometheus."""
    connected, disconnected = await database.read(summary.connected)
    return Response(figures.text(connected, disconnected), media_type=MEDIA_TYPE)


router = Router("/", route_handlers=[tell_health, tell_readiness, tell_figures], tags=["Operations"])
