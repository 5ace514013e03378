"""REST routes `/healthz`, `/readyz`, `/metrics` and `/api/v1/reload`."""

from http import HTTPStatus
from typing import Any, Final

from litestar import Request, Response, Router, get, post
from litestar.di import NamedDependency as Given
from litestar.openapi import ResponseSpec
from sqlalchemy import Connection

from meshfleet.db import Database
from meshfleet.rest.operations import (
    FORWARDING_HEADER,
    Health,
    NotReady,
    ReadinessReason,
    Ready,
    ReloadedSettings,
)
from meshfleet.service.actor import Actor
from meshfleet.service.audit import log as audit
from meshfleet.service.clock import Now
from meshfleet.service.fleet_metrics import FleetMetrics
from meshfleet.service.http.access import get_forwarding
from meshfleet.service.metrics import METRICS_MEDIA_TYPE, Metrics
from meshfleet.service.readiness import Readiness
from meshfleet.service.reload import SettingsReloader

_UNAVAILABLE: Final = HTTPStatus.SERVICE_UNAVAILABLE


@get("/healthz")
async def get_health() -> Health:
    """Report that the process of the service is alive."""
    return Health(status="ok")


@get("/readyz", responses={_UNAVAILABLE: ResponseSpec(NotReady, description="Not ready, with the reasons.")})
async def get_readiness(
    request: Request[Any, Any, Any], database: Given[Database], readiness: Given[Readiness]
) -> Response[Ready]:
    """Report whether the service is ready, and the reasons if it is not.

    The header `X-Meshfleet-Forwarding` says whether `X-Forwarded-For` was trusted, ignored or absent.
    """
    reasons = await readiness.list_reasons(database)
    response = _build_not_ready_response(reasons) if reasons else Response(Ready(status="ready"))
    response.headers[FORWARDING_HEADER] = get_forwarding(request.scope)
    return response


def _build_not_ready_response(reasons: tuple[ReadinessReason, ...]) -> Response[Any]:
    return Response(NotReady(status="unavailable", reasons=reasons), status_code=_UNAVAILABLE)


@get("/metrics", media_type=METRICS_MEDIA_TYPE)
async def get_metrics(
    metrics: Given[Metrics],
    fleet_metrics: Given[FleetMetrics],
    database: Given[Database],
    readiness: Given[Readiness],
) -> Response[bytes]:
    """Get metrics of the service and the fleet in the Prometheus text format."""
    await fleet_metrics.refresh()
    metrics.not_ready_codes = {each.code for each in await readiness.list_reasons(database)}
    return Response(metrics.render(), media_type=METRICS_MEDIA_TYPE)


@post("/api/v1/reload", status_code=HTTPStatus.OK)
async def reload_settings(
    actor: Given[Actor], database: Given[Database], reloader: Given[SettingsReloader], now: Given[Now]
) -> ReloadedSettings:
    """Read the settings again, and apply those that can be changed while the service runs."""
    result = await reloader.reload()
    await database.write(_record_reload, actor, result, now())
    return result


def _record_reload(connection: Connection, by: Actor, result: ReloadedSettings, now: int) -> None:
    detail = {"applied": result.applied, "needsRestart": result.needs_restart}
    audit.record_change(connection, by, "service.reload", "settings", now=now, **detail)


router = Router(
    "/", route_handlers=[get_health, get_readiness, get_metrics, reload_settings], tags=["Operations"]
)
