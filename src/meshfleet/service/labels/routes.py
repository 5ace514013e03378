"""REST routes `/api/v1/labels` and `/api/v1/devices/{device_id}/labels`."""

from typing import Final

from litestar import Router, delete, get, post, put
from litestar.di import NamedDependency as Given
from litestar.params import FromPath, JSONBody

from meshfleet.db import Database
from meshfleet.errors import Fault, InvalidRequest, NotFound
from meshfleet.errors.protocol import MalformedDeviceId, MalformedText
from meshfleet.protocol.ids import Mac, parse_device_id, to_mac
from meshfleet.rest.devices import Device, Label, LabelPage, NewLabel
from meshfleet.rest.inputs import parse_label, parse_new_label
from meshfleet.service.actor import Actor
from meshfleet.service.clock import Now
from meshfleet.service.devices.parameters import parse_path_device
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken
from meshfleet.service.http.request import decode_segment
from meshfleet.service.labels import store

_MAX_DEVICES: Final = 1000
"""Maximum number of devices per request, because other writers wait for the transaction."""


@get()
async def list_labels(
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    next_token: NextToken = None,
) -> LabelPage:
    """List all labels, each with the number of devices that have the label."""
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
    """Create a label and attach it to devices. An existing label stays attached to its other devices."""
    devices = _parse_devices(data.device_ids)
    return await database.write(store.add_label, parse_new_label(data.label), devices, by=actor, now=now())


@delete("/{label:str}")
async def remove_label(
    label: FromPath[str], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> None:
    """Delete a label and remove it from all devices."""
    await database.write(store.delete_label, _parse_path_label(label), by=actor, now=now())


@put("/{device_id:str}/labels/{label:str}", problems=(409,))
async def attach_label(
    device_id: FromPath[str],
    label: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> Device:
    """Attach a label to a device. Create the label if it does not exist."""
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
    """Remove a label from a device."""
    mac = parse_path_device(device_id)
    return await database.write(store.detach_label, _parse_path_label(label), mac, by=actor, now=now())


def _parse_devices(ids: tuple[str, ...]) -> list[Mac]:
    """Parse device ids to MACs. If some ids are malformed, raise `InvalidRequest` with a fault for each."""
    if len(ids) > _MAX_DEVICES:
        raise InvalidRequest([Fault("deviceIds", f"must have at most {_MAX_DEVICES} devices")])
    macs, faults = [], []
    for index, text in enumerate(ids):
        try:
            macs.append(to_mac(parse_device_id(text, f"deviceIds[{index}]")))
        except MalformedDeviceId as exc:
            faults.append(Fault(exc.field, exc.reason))
    if faults:
        raise InvalidRequest(faults)
    return macs


def _parse_path_label(text: str) -> str:
    """Parse the label in a URL path. Raise `NotFound` if the string cannot be a label."""
    try:
        return parse_label(decode_segment(text))
    except MalformedText:
        raise NotFound("label not found") from None


router = Router("/api/v1/labels", route_handlers=[list_labels, add_label, remove_label], tags=["Labels"])
device_router = Router("/api/v1/devices", route_handlers=[attach_label, detach_label], tags=["Labels"])
