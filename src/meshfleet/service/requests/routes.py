"""REST routes `/api/v1/devices/{id}/requests` and `/api/v1/requests`."""

import asyncio
from typing import Annotated, Any, Final

from litestar import Response, Router, get, post
from litestar.di import NamedDependency as Given
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, HeaderParameter, JSONBody
from msgspec import Struct

from meshfleet.db import Database
from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.protocol.times import parse_millis
from meshfleet.rest.requests import (
    REQUESTS_PATH,
    NewRequest,
    RequestAccepted,
    RequestOutcome,
    RequestPage,
    RequestRecord,
)
from meshfleet.service.devices import listing
from meshfleet.service.devices.parameters import parse_path_device
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken
from meshfleet.service.http.request import ApiRequest, decode_segment
from meshfleet.service.requests import store
from meshfleet.service.requests.dispatcher import RequestFacade, get_response_or_raise
from meshfleet.service.requests.prepared_request import prepare_request

_ACCEPTED: Final = 202


class RequestListQuery(Struct, frozen=True, kw_only=True):
    """Query of the request history of a device. Page tokens are signed for one query."""

    device: Mac


@post(
    "/{device_id:str}/requests",
    status_code=200,
    problems=(409, 502, 504),
    responses={
        _ACCEPTED: ResponseSpec(
            RequestAccepted,
            description="The request was accepted with `respond-async`, or an ack was sent.",
        )
    },
)
async def send_request(
    device_id: FromPath[str],
    data: JSONBody[NewRequest],
    request: ApiRequest,
    request_facade: Given[RequestFacade],
    prefer: Annotated[  # noqa: ARG001 # only documented: it may be repeated, see below
        str | None,
        HeaderParameter(
            name="Prefer", description="`respond-async`: return at once, without the response of the device."
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        HeaderParameter(
            name="Idempotency-Key",
            description="A repeated request with the same key and body returns the response of the first.",
        ),
    ] = None,
) -> Response[RequestOutcome]:
    """Send a request to a device or gateway, and return its response, which may have any status.

    Without `gateway`, the gateway with the best signal is selected; `choice` explains why. An ack
    has no response: 202 means that the ack was sent.
    """
    device, prepared, actor = parse_path_device(device_id), prepare_request(data), request.user
    is_awaited = not _responds_async(request.headers.getall("prefer", []))
    handle = await request_facade.dispatcher.submit(
        device,
        prepared,
        by=actor,
        key=request_facade.build_idempotency_key(idempotency_key, actor, device, data),
        is_awaited=is_awaited,
    )
    if not prepared.operation.is_answered:
        record = await asyncio.shield(handle.outcome)
        if record.problem is not None:
            get_response_or_raise(record)
        return _build_accepted_response(RequestAccepted(id=handle.id, state="SENT"))
    if not is_awaited:
        return _build_accepted_response(
            RequestAccepted(id=handle.id, state="PENDING"), {"Preference-Applied": "respond-async"}
        )
    return Response(get_response_or_raise(await asyncio.shield(handle.outcome)))


@get("/{device_id:str}/requests")
async def list_requests(
    device_id: FromPath[str],
    limit: Given[int],
    database: Given[Database],
    pages: Given[PageTokens],
    request_facade: Given[RequestFacade],
    next_token: NextToken = None,
) -> RequestPage:
    """List the requests to a device with their outcomes, the newest first."""
    device = parse_path_device(device_id)
    query = RequestListQuery(device=device)
    before = None if next_token is None else pages.decode(query, next_token)
    await request_facade.flush_history()
    records = await database.read(store.list_requests, mac_to_int(device), before=before, limit=limit + 1)
    if not records:
        await database.read(listing.load_device, device)  # raises not-found if the device does not exist
    return RequestPage(**pages.build_page(query, records, limit, _get_position))


@get("/{request_id:str}")
async def show_request(
    request_id: FromPath[str], database: Given[Database], request_facade: Given[RequestFacade]
) -> RequestRecord:
    """Show a request and its outcome."""
    await request_facade.flush_history()
    return await database.read(store.load_request, decode_segment(request_id))


def _get_position(last: RequestRecord) -> tuple[int, str]:
    return parse_millis(last.requested_at), last.id


def _responds_async(prefer: list[str]) -> bool:
    """Return whether any `Prefer` header contains `respond-async`."""
    preferences = (each.partition(";")[0].strip().lower() for line in prefer for each in line.split(","))
    return "respond-async" in preferences


def _build_accepted_response(body: RequestAccepted, headers: dict[str, str] | None = None) -> Response[Any]:
    return Response(
        body, status_code=_ACCEPTED, headers={"Location": f"{REQUESTS_PATH}/{body.id}", **(headers or {})}
    )


device_router = Router("/api/v1/devices", route_handlers=[send_request, list_requests], tags=["Requests"])
router = Router(REQUESTS_PATH, route_handlers=[show_request], tags=["Requests"])
