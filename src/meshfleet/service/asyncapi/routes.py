"""`GET /api/v1/asyncapi.json`."""

from typing import Any

from litestar import Router, get
from litestar.di import NamedDependency as Given

from meshfleet.service.asyncapi.messaging import Messaging
from meshfleet.service.http.asked import Asked


@get("/asyncapi.json", tags=["Operations"])
async def tell_messaging(request: Asked, messaging: Given[Messaging]) -> dict[str, Any]:
    """Tell all that can be published and subscribed to, as AsyncAPI 3.0."""
    return messaging.describe(request.url.hostname)


router = Router("/api/v1", route_handlers=[tell_messaging])
