"""`/api/v1/labels`, and the labels of a device."""

from typing import Final

from litestar import Router, delete, get, post, put
from litestar.di import NamedDependency as Given
from litestar.params import FromPath, JSONBody

from meshfleet.db import Database
from meshfleet.errors import Fault, InvalidRequest, NotFound
from meshfleet.errors.protocol import MalformedDeviceId, MalformedText
from meshfleet.protocol.ids import Mac, parse_device_id, to_mac
from meshfleet.rest import Device, Label, LabelPage, NewLabel, parse_label, parse_new_label
from meshfleet.service.actor import Actor
from meshfleet.service.clock import Now
from meshfleet.service.devices.parameters import parse_path_device
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken
from meshfleet.service.http.request import decode_segment
from meshfleet.service.labels import store

_MAX_DEVICES: Final = 1000
"""At once; others wait meanwhile."""


@get()
async def list_labels(
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    next_token: NextToken = None,
) -> LabelPage:
    """List all labels, each with the number of devices that have it."""
    after = pages.decode_start("labels", next_token, start="")
    found = await database.read(store.list_labels, after=after, limit=limit + 1)
    return LabelPage(**pages.build_page("labels", found, limit, lambda last: (last.label,)))


@post(status_code=200, problems=(404, 409))
async def add_label(
    data: JSONBody[NewLabel],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> Label:
    """Add a label, and put it on devices; a label that exists stays as it is."""
    devices = _parse_devices(data.device_ids)
    return await database.write(store.add_label, parse_new_label(data.label), devices, by=actor, now=now())


@delete("/{label:str}")
async def remove_label(
    label: FromPath[str], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> None:
    """Remove a label from everything."""
    await database.write(store.delete_label, _parse_path_label(label), by=actor, now=now())


@put("/{device_id:str}/labels/{label:str}", problems=(409,))
async def attach_label(
    device_id: FromPath[str],
    label: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> Device:
    """Put a label on a device; an unknown label is made."""
    mac = parse_path_device(device_id)
    return await database.write(
        store.attach_label, parse_new_label(decode_segment(label)), mac, by=actor, now=now()
    )


@delete("/{device_id:str}/labels/{label:str}", status_code=200)
async def detach_label(
    device_id: FromPath[str],
    label: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> Device:
    """Take a label off a device."""
    mac = parse_path_device(device_id)
    return await database.write(store.detach_label, _parse_path_label(label), mac, by=actor, now=now())


def _parse_devices(ids: tuple[str, ...]) -> list[Mac]:
    """All of them, or all that is wrong with them."""
    if len(ids) > _MAX_DEVICES:
        raise InvalidRequest([Fault("deviceIds", f"has more than {_MAX_DEVICES} devices")])
    found, wrong = [], []
    for place, text in enumerate(ids):
        try:
            found.append(to_mac(parse_device_id(text, f"deviceIds[{place}]")))
        except MalformedDeviceId as exc:
            wrong.append(Fault(exc.field, exc.reason))
    if wrong:
        raise InvalidRequest(wrong)
    return found


def _parse_path_label(text: str) -> str:
    """A label that should exist: one that cannot exist does not."""
    try:
        return parse_label(decode_segment(text))
    except MalformedText:
        raise NotFound("there is no such label") from None


router = Router("/api/v1/labels", route_handlers=[list_labels, add_label, remove_label], tags=["Labels"])
device_router = Router("/api/v1/devices", route_handlers=[attach_label, detach_label], tags=["Labels"])
