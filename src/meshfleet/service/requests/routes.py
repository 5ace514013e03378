"""`/api/v1/devices/{id}/requests` and `/api/v1/requests`."""

import asyncio
from typing import Annotated, Any, Final

from litestar import Response, Router, get, post
from litestar.di import NamedDependency as Given
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, HeaderParameter, JSONBody
from msgspec import Struct

from meshfleet.db import Database
from meshfleet.service.devices import listing
from meshfleet.service.devices.paths import device_in_path
from meshfleet.service.http.asked import Asked
from meshfleet.service.http.pages import Pages
from meshfleet.service.http.parameters import NextToken
from meshfleet.service.http.paths import segment
from meshfleet.service.requests import store
from meshfleet.service.requests.order import read_order
from meshfleet.service.requests.window import Window, answer_in
from meshfleet.wire.ids import Mac, mac_number
from meshfleet.wire.rest import (
    REQUESTS,
    NewRequest,
    RequestAccepted,
    RequestAnswer,
    RequestPage,
    RequestRecord,
)
from meshfleet.wire.times import parse_millis

_ACCEPTED: Final = 202


class RequestListing(Struct, frozen=True, kw_only=True):
    """What the pages of a history belong to."""

    device: Mac


@post(
    "/{device_id:str}/requests",
    status_code=200,
    problems=(409, 502, 504),
    responses={
        _ACCEPTED: ResponseSpec(
            RequestAccepted, description="It is on its way, and nobody waits for it; or it is an ack."
        )
    },
)
async def send_request(
    device_id: FromPath[str],
    data: JSONBody[NewRequest],
    request: Asked,
    window: Given[Window],
    prefer: Annotated[  # noqa: ARG001 # for the document; it may come more than once
        str | None,
        HeaderParameter(name="Prefer", description="`respond-async`: do not wait for the response."),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        HeaderParameter(
            name="Idempotency-Key", description="The same key with the same body gets the same answer."
        ),
    ] = None,
) -> Response[RequestAnswer]:
    """Send a request to a device, or to a gateway, and answer with its response, whatever its status.

    Without `gateway` the one is taken that hears the device best; `choice` tells why. An ack is not answered:
    202 tells that it was sent.
    """
    device, order, actor = device_in_path(device_id), read_order(data), request.user
    is_waited_for = not _responds_async(request.headers.getall("prefer", []))
    taken = await window.dispatch.take(
        device,
        order,
        by=actor,
        key=window.key(idempotency_key, actor, device, data),
        waited_for=is_waited_for,
    )
    if not order.operation.is_answered:
        record = await asyncio.shield(taken.over)
        if record.problem is not None:
            answer_in(record)
        return _accepted(RequestAccepted(id=taken.id, state="SENT"))
    if not is_waited_for:
        return _accepted(
            RequestAccepted(id=taken.id, state="PENDING"), {"Preference-Applied": "respond-async"}
        )
    return Response(answer_in(await asyncio.shield(taken.over)))


@get("/{device_id:str}/requests")
async def list_requests(
    device_id: FromPath[str],
    limit: Given[int],
    database: Given[Database],
    pages: Given[Pages],
    window: Given[Window],
    next_token: NextToken = None,
) -> RequestPage:
    """List what was asked of a device, the newest first, and what became of it."""
    device = device_in_path(device_id)
    asked = RequestListing(device=device)
    before = None if next_token is None else pages.read(asked, next_token)
    await window.settle()
    found = await database.read(store.page, mac_number(device), before=before, limit=limit + 1)
    if not found:
        await database.read(listing.device, device)  # it may be unknown, and then says so
    return RequestPage(**pages.cut(asked, found, limit, _position))


@get("/{request_id:str}")
async def show_request(
    request_id: FromPath[str], database: Given[Database], window: Given[Window]
) -> RequestRecord:
    """Show a request, and what became of it."""
    await window.settle()
    return await database.read(store.show, segment(request_id))


def _position(last: RequestRecord) -> tuple[int, str]:
    return parse_millis(last.requested_at), last.id


def _responds_async(prefer: list[str]) -> bool:
    """Whether that is among all that is preferred, on however many lines."""
    wishes = (each.partition(";")[0].strip().lower() for line in prefer for each in line.split(","))
    return "respond-async" in wishes


def _accepted(body: RequestAccepted, headers: dict[str, str] | None = None) -> Response[Any]:
    return Response(
        body, status_code=_ACCEPTED, headers={"Location": f"{REQUESTS}/{body.id}", **(headers or {})}
    )


device_router = Router("/api/v1/devices", route_handlers=[send_request, list_requests], tags=["Requests"])
router = Router(REQUESTS, route_handlers=[show_request], tags=["Requests"])
