"""REST route of the AsyncAPI document: `/api/v1/asyncapi.json`."""

from typing import Any

from litestar import Router, get
from litestar.di import NamedDependency as Given

from meshfleet.service.asyncapi.document import MessagingDocument
from meshfleet.service.http.request import ApiRequest


@get("/asyncapi.json", tags=["Operations"])
async def get_asyncapi(request: ApiRequest, messaging: Given[MessagingDocument]) -> dict[str, Any]:
    """Get the AsyncAPI document of the MQTT messages. The document follows AsyncAPI 3.0."""
    return messaging.build(request.url.hostname)


router = Router("/api/v1", route_handlers=[get_asyncapi])
