"""Requests to devices through a service, with connected emulated gateways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.client import AckType, Fleet, NewRequest, Operation, RequestState, check
from meshfleet.errors import Declined, GatewayOffline, NotFound, Refused
from meshfleet.errors.protocol import GatewayTooOld, MalformedInput, MalformedMac
from meshfleet.protocol.codes import Status
from meshfleet.testing import RunningFleet, running_fleet
from tests.eventually import eventually_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from meshfleet.rest.requests import RequestRecord

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def running_service() -> Iterator[RunningFleet]:
    """Run a whole service with one gateway."""
    with running_fleet(gateways=1, devices=3, speed=60.0) as running_service:
        yield running_service


@pytest.fixture
async def fleet(running_service: RunningFleet) -> AsyncIterator[Fleet]:
    async with Fleet(
        running_service.url, user=running_service.user, password=running_service.password
    ) as fleet:
        yield fleet


@pytest.fixture
def gateway(running_service: RunningFleet) -> str:
    return running_service.gateways[0].mac


@pytest.mark.rule("request-34")
async def test_hex_reads_raw_and_a_name_reads_decoded(fleet: Fleet, gateway: str) -> None:
    raw = check(await fleet.requests.read(gateway, "8000"))
    decoded = check(await fleet.requests.read(gateway.upper(), "model-number", gateway=f"bmac-{gateway}"))
    assert raw.gateway == decoded.gateway == gateway
    assert int(raw.value, 16) == decoded.value
    assert [each.request.operation async for each in fleet.requests.list(gateway)][:2] == [
        Operation.READ_DECODED,
        Operation.READ,
    ]


async def test_a_gateway_returns_its_version(fleet: Fleet, gateway: str) -> None:
    assert (await fleet.requests.apiversion(gateway, priority=4)).version == "2.4.0"


async def test_check_raises_an_error_for_a_failed_response(fleet: Fleet, gateway: str) -> None:
    response = await fleet.requests.read(gateway, "8fff7f")
    assert response.status == Status.UNKNOWN_IDENTIFIER
    with pytest.raises(Declined, match=r"unknown-identifier \(status 4\)"):
        check(response)


async def test_a_request_can_be_posted_and_looked_up(fleet: Fleet, gateway: str) -> None:
    accepted = await fleet.requests.post(gateway, NewRequest(operation=Operation.READ, identifier="8000"))
    assert accepted.state == "PENDING"

    async def get_finished() -> RequestRecord | None:
        record = await fleet.requests.show(accepted.id)
        return None if record.state is RequestState.PENDING else record

    record = await eventually_async(get_finished, "the end of the request")
    assert record.state is RequestState.DONE
    assert record.response is not None
    with pytest.raises(NotFound):
        await fleet.requests.show("nothing-like-it")


async def test_an_ack_is_sent_without_a_response(fleet: Fleet, gateway: str) -> None:
    time = "2026-01-01T00:00:00.000Z"

    async def has_version() -> bool:
        return (await fleet.gateways.show(gateway)).api_version is not None

    await eventually_async(has_version, "the API version of the gateway")
    sent = await fleet.requests.ack(gateway, "8100", time=time, type=AckType.BACKFILL, gateway=gateway)
    assert sent.state == "SENT"
    ack = NewRequest(operation=Operation.ACK, identifier="8100", time=time)
    with pytest.raises(ValueError, match="has no response"):
        await fleet.requests.send(gateway, ack)


async def test_invalid_requests_are_refused_with_the_reason(fleet: Fleet, gateway: str) -> None:
    with pytest.raises((Refused, MalformedInput), match="riority"):
        await fleet.requests.read(gateway, "8000", priority=9)
    with pytest.raises((Refused, MalformedInput), match="timeout"):
        await fleet.requests.read(gateway, "8000", timeout=0.001)
    with pytest.raises((Refused, MalformedInput), match="value"):
        await fleet.requests.write(gateway, "8000", "zz")
    with pytest.raises(NotFound):
        await fleet.requests.read("c0ffee999999", "8000")
    with pytest.raises(MalformedMac):
        await fleet.requests.read("no-mac", "8000")
    with pytest.raises(TypeError, match="gatewy"):
        await fleet.requests.read(gateway, "8000", gatewy=gateway)  # type: ignore[call-arg] # misspelt on purpose


async def test_a_request_to_a_disconnected_gateway_fails_at_once(fleet: Fleet) -> None:
    absent = "02005e00ff01"
    await fleet.gateways.claim(absent)
    with pytest.raises(GatewayOffline):
        await fleet.requests.read(absent, "8000")


async def test_a_request_that_needs_a_newer_gateway_is_refused_before_it_is_sent() -> None:
    with running_fleet(gateways=1, devices=0, api_version="1.2.0") as running_service:
        async with Fleet(
            running_service.url, user=running_service.user, password=running_service.password
        ) as fleet:
            with pytest.raises(GatewayTooOld) as raised:
                await fleet.requests.ack(
                    running_service.gateways[0].mac, "8100", time="2026-01-01T00:00:00.000Z"
                )
            assert raised.value.since is None
            assert "2.4.0" in str(raised.value)
