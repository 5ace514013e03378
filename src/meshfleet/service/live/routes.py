"""`/api/v1/stream` and `/api/v1/live`: two doors to the same events."""

from dataclasses import dataclass
from typing import Annotated, Any

from litestar import WebSocket, get, websocket
from litestar.di import NamedDependency as Given
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, OpenAPIType, Operation, Schema
from litestar.params import HeaderParameter, QueryParameter, SkipValidation

from meshfleet.service.accounts.gatekeeper import Gatekeeper
from meshfleet.service.accounts.model import Actor
from meshfleet.service.http.access import bearer_of
from meshfleet.service.http.asked import Asked
from meshfleet.service.live.conversation import Conversation
from meshfleet.service.live.live import Live
from meshfleet.service.live.stream import MEDIA_TYPE, EventStream
from meshfleet.service.live.want import read_want
from meshfleet.wire.rest.live import LIVE, LIVE_TYPES, STREAM


@dataclass
class _Events(Operation):
    """Tells what the answer is, which Litestar cannot know."""

    def __post_init__(self) -> None:
        answer = (self.responses or {})["200"]
        assert isinstance(answer, OpenAPIResponse)  # noqa: S101 # Litestar has just made it
        answer.content = {MEDIA_TYPE: OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING))}


@get(STREAM, operation_class=_Events, problems=(429,), tags=["Live"])
async def stream_events(
    request: Asked,
    actor: Given[Actor],
    live: Given[SkipValidation[Live]],
    types: Annotated[
        list[str] | None,
        QueryParameter(
            name="Types",
            description="Of one of these types; may be given several times.",
            schema_extra={"items": {"type": "string", "enum": list(LIVE_TYPES)}},
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
    want = read_want({"Types": types, "Ids": ids, "Gateway": gateway, "Jobs": jobs})
    await request.body()  # there is none; but who goes away before its end counts as a mistake
    return EventStream(live, actor, bearer_of(request.scope), want, last_event_id)


@websocket(LIVE)
async def talk(
    socket: WebSocket[Any, Any, Any],
    live: Given[SkipValidation[Live]],
    gatekeeper: Given[SkipValidation[Gatekeeper]],
) -> None:
    """Tell live events over a WebSocket."""
    await Conversation(socket, live, gatekeeper).hold()
