"""`/healthz`, `/readyz` and `/metrics`."""

from litestar import Response, Router, get
from litestar.di import NamedDependency as Given

from meshfleet.db import Database
from meshfleet.db.schema import is_current
from meshfleet.errors import Unavailable
from meshfleet.service.devices import summary
from meshfleet.service.operations.figures import MEDIA_TYPE, Figures
from meshfleet.service.operations.readiness import Readiness
from meshfleet.wire.rest import Health


@get("/healthz")
async def tell_health() -> Health:
    """Tell that the process is up."""
    return Health(status="ok")


@get("/readyz")
async def tell_readiness(database: Given[Database], readiness: Given[Readiness]) -> Health:
    """Tell that the database answers and has the schema that we need, and that the broker can commit."""
    readiness.check()
    if not await database.read(is_current):
        raise Unavailable("the database has another schema than this program needs")
    return Health(status="ok")


@get("/metrics", media_type=MEDIA_TYPE)
async def tell_figures(figures: Given[Figures], database: Given[Database]) -> Response[bytes]:
    """Tell figures of the service and the fleet, for Prometheus."""
    connected, disconnected = await database.read(summary.connected)
    return Response(figures.text(connected, disconnected), media_type=MEDIA_TYPE)


router = Router("/", route_handlers=[tell_health, tell_readiness, tell_figures], tags=["Operations"])
