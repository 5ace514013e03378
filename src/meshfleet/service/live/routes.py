"""`/api/v1/stream` and `/api/v1/live`: two doors to the same events."""

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
    """Tells what the answer is, which Litestar cannot know."""

    def __post_init__(self) -> None:
        answer = (self.responses or {})["200"]
        assert isinstance(answer, OpenAPIResponse)  # noqa: S101 # Litestar has just made it
        answer.content = {SSE_MEDIA_TYPE: OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING))}


@get(STREAM_PATH, operation_class=_EventStreamOperation, problems=(429,), tags=["Live"])
async def stream_events(
    request: ApiRequest,
    actor: Given[Actor],
    live: Given[SkipValidation[LiveEvents]],
    types: Annotated[
        list[str] | None,
        QueryParameter(
            name="Types",
            description="Of one of these types; may be given several times.",
            schema_extra={"items": {"type": "string", "enum": list(LIVE_EVENT_TYPES)}},
        ),
    ] = None,
    ids: Annotated[
        list[str] | None,
        QueryParameter(name="Ids", description="Of one of these devices; may be given several times."),
    ] = None,
    gateway: Annotated[
        list[str] | None,
        QueryParameter(
            name="Gateway",
            description="Of one of these gateways, or through it; may be given several times.",
        ),
    ] = None,
    jobs: Annotated[
        list[str] | None,
        QueryParameter(name="Jobs", description="Of one of these jobs; may be given several times."),
    ] = None,
    last_event_id: Annotated[
        str | None,
        HeaderParameter(name="Last-Event-ID", description="The `id` of the last event that was heard."),
    ] = None,
) -> EventStream:
    """Tell live events that meet all filters, as server-sent events without end."""
    want = parse_event_filter({"Types": types, "Ids": ids, "Gateway": gateway, "Jobs": jobs})
    await request.body()  # there is none; but who goes away before its end counts as a mistake
    return EventStream(live, actor, get_bearer(request.scope), want, last_event_id)


@websocket(LIVE_PATH)
async def handle_websocket(
    socket: WebSocket[Any, Any, Any],
    live: Given[SkipValidation[LiveEvents]],
    authenticator: Given[SkipValidation[BearerAuthenticator]],
) -> None:
    """Tell live events over a WebSocket."""
    await WebSocketSession(socket, live, authenticator).run()
