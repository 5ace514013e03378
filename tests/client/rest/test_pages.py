"""Lists of many pages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.client import Fleet
from meshfleet.errors import ServiceRefused
from meshfleet.protocol.ids import Mac, to_device_id
from meshfleet.service.devices.model import DeviceObservation
from tests.client.rest.scripted_server import build_response, scripted_server

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService

pytestmark = pytest.mark.anyio

KEY = "mfk_not-a-key"


def build_page(labels: list[str], token: str | None) -> bytes:
    return build_response(
        200, {"items": [{"label": each, "deviceCount": 0} for each in labels], "nextToken": token}
    )


@pytest.mark.rule("rest-20")
async def test_a_list_of_many_pages_has_each_item_once_while_others_are_added(
    service: LiveService, fleet: Fleet
) -> None:
    macs = [Mac(f"{0xD00000000000 + 2 * number:012x}") for number in range(2500)]
    service.observe(*(DeviceObservation(device=each, at=service.clock()) for each in macs))
    additions, ids = 0, []
    async for device in fleet.devices.list():
        ids.append(device.id)
        if len(ids) % 700 == 0:  # in the middle of pages, before and after the current position
            additions += 1
            new = [Mac(f"{0xD00000000000 + 2 * number + 1:012x}") for number in (additions, 2499 - additions)]
            at = service.clock()
            await asyncio.to_thread(service.observe, *(DeviceObservation(device=mac, at=at) for mac in new))
    assert len(ids) == len(set(ids))
    assert {to_device_id(each) for each in macs} <= set(ids)
    assert ids == sorted(ids)


async def test_a_page_is_fetched_when_it_is_needed() -> None:
    async with scripted_server(build_page(["a", "b"], "t"), build_page(["c"], None)) as server:
        async with Fleet(server.url, token=KEY) as fleet:
            labels = fleet.labels.list()
            assert server.requests == []
            assert [(await anext(labels)).label for _ in range(2)] == ["a", "b"]
            assert [each.target for each in server.requests] == ["/api/v1/labels?MaxResults=1000"]
            assert [each.label async for each in labels] == ["c"]
        assert server.requests[1].target == "/api/v1/labels?MaxResults=1000&NextToken=t"


@pytest.mark.rule("version-22")
async def test_fields_that_a_newer_service_adds_are_ignored() -> None:
    label = {"label": "a", "deviceCount": 0, "colour": {"of": "a later version"}}
    newer = build_response(200, {"items": [label], "nextToken": None, "total": 1})
    async with scripted_server(newer) as server, Fleet(server.url, token=KEY) as fleet:
        assert [each.label async for each in fleet.labels.list()] == ["a"]


async def test_an_empty_page_is_not_the_end_of_a_list() -> None:
    pages = [build_page([], "1"), build_page([], "2"), build_page(["a"], None)]
    async with scripted_server(*pages) as server, Fleet(server.url, token=KEY) as fleet:
        assert [each.label async for each in fleet.labels.list()] == ["a"]


async def test_a_list_that_repeats_its_token_is_refused() -> None:
    async with scripted_server(build_page(["a"], "t")) as server, Fleet(server.url, token=KEY) as fleet:
        with pytest.raises(ServiceRefused, match="does not end"):
            assert [each async for each in fleet.labels.list()]
        assert len(server.requests) == 2
