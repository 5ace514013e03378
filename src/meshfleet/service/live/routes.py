"""Routes of live events: `/api/v1/stream` (server-sent events) and `/api/v1/live` (WebSocket)."""

from dataclasses import dataclass
from typing import Annotated, Any

from litestar import WebSocket, get, websocket
from litestar.di import NamedDependency as Given
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, OpenAPIType, Operation, Schema
from litestar.params import HeaderParameter, QueryParameter, SkipValidation

from meshfleet.rest.live import LIVE_EVENT_TYPES, LIVE_PATH, STREAM_PATH
from meshfleet.service.accounts.bearer import BearerAuthenticator
from meshfleet.service.actor import Actor
from meshfleet.service.http.access import get_bearer
from meshfleet.service.http.request import ApiRequest
from meshfleet.service.live.filters import parse_event_filter
from meshfleet.service.live.live_events import LiveEvents
from meshfleet.service.live.sse import SSE_MEDIA_TYPE, EventStream
from meshfleet.service.live.websocket import WebSocketSession


@dataclass
class _EventStreamOperation(Operation):
    """OpenAPI operation with the media type of the event stream, which Litestar cannot infer."""

    def __post_init__(self) -> None:
        response = (self.responses or {})["200"]
        assert isinstance(response, OpenAPIResponse)  # noqa: S101 # created by Litestar just before
        response.content = {SSE_MEDIA_TYPE: OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING))}


@get(STREAM_PATH, operation_class=_EventStreamOperation, problems=(429,), tags=["Live"])
async def stream_events(
    request: ApiRequest,
    actor: Given[Actor],
    live: Given[SkipValidation[LiveEvents]],
    types: Annotated[
        list[str] | None,
        QueryParameter(
            name="Types",
            description="Types of live events to include; may be repeated.",
            schema_extra={"items": {"type": "string", "enum": list(LIVE_EVENT_TYPES)}},
        ),
    ] = None,
    ids: Annotated[
        list[str] | None,
        QueryParameter(name="Ids", description="Ids of devices whose events to include; may be repeated."),
    ] = None,
    gateway: Annotated[
        list[str] | None,
        QueryParameter(
            name="Gateway",
            description="MACs of gateways whose events, and those of their devices, to include; may be"
            " repeated.",
        ),
    ] = None,
    jobs: Annotated[
        list[str] | None,
        QueryParameter(name="Jobs", description="Ids of jobs whose events to include; may be repeated."),
    ] = None,
    last_event_id: Annotated[
        str | None,
        HeaderParameter(
            name="Last-Event-ID", description="The `id` of the last event received, to resume after it."
        ),
    ] = None,
) -> EventStream:
    """Stream live events that match all filter parameters, as server-sent events without end."""
    event_filter = parse_event_filter({"Types": types, "Ids": ids, "Gateway": gateway, "Jobs": jobs})
    # The body is empty, but a client that disconnects before its end is read counts as an error.
    await request.body()
    return EventStream(live, actor, get_bearer(request.scope), event_filter, last_event_id)


@websocket(LIVE_PATH)
async def handle_websocket(
    socket: WebSocket[Any, Any, Any],
    live: Given[SkipValidation[LiveEvents]],
    authenticator: Given[SkipValidation[BearerAuthenticator]],
) -> None:
    """Send live events over a WebSocket."""
    await WebSocketSession(socket, live, authenticator).run()
