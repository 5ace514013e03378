"""Firmware updates end to end: broker, service, image server and gateway."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.emulator.runtime.image_fetcher import ImageFetchOptions
from meshfleet.emulator.updates.update_state import Error, ImageKey, State
from meshfleet.mqtt.codec.packets import Connect
from meshfleet.protocol.diagnostics import encode_image_response
from meshfleet.protocol.firmware_image import build_package
from meshfleet.protocol.ids import Mac, ModelNumber, Version
from tests.emulator.runtime.firmware_service import build_image_location, run_firmware_service
from tests.emulator.runtime.fleet_builder import FleetBuilder, Listener, fresh_mac, run_listener
from tests.emulator.runtime.http_server import ScriptedHttpServer, build_response
from tests.emulator.updates.harness import TRACKER, build_test_site
from tests.eventually import RETRY_TIMEOUTS, eventually_async
from tests.mqtt.client.proxy import Proxy
from tests.program_logs import register_log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import httpx

    from meshfleet.mqtt.client import BrokerAddress
    from tests.servers import Mosquitto

pytestmark = pytest.mark.anyio

MODEL, NEWER = ModelNumber("0005"), Version(3, 2, 0, 1)
PACKAGE = build_package(b"firmware" * 500, model_number=MODEL, version=NEWER)
FOREIGN = build_package(b"firmware" * 500, model_number=ModelNumber("0018"), version=NEWER)
BARE = b"\x7fblob" * 500
START = (ImageKey(MODEL, NEWER).to_bytes() + b"\0").hex()
SPEED = 300.0
END_STATES = (State.DONE, State.FAILED)


@pytest.fixture
async def web() -> AsyncIterator[ScriptedHttpServer]:
    responses = {
        "/package": build_response(200, PACKAGE),
        "/foreign": build_response(200, FOREIGN),
        "/bare": build_response(200, BARE),
        "/cut": build_response(200, PACKAGE[:1000], Content_Length=str(len(PACKAGE))),
        "/half": build_response(200, PACKAGE[:1000]),
        "/empty": build_response(200, b""),
    }
    async with ScriptedHttpServer.serving(responses) as web:
        yield web


class UpdateScenario:
    """Running gateway, and a client that observes the updates of its devices."""

    def __init__(self, listener: Listener, mac: Mac) -> None:
        self.listener = listener
        self.mac = mac

    async def update(self, device: Mac = TRACKER) -> tuple[State, Error]:
        """Start an update and wait for its end. Return its final state and error."""
        response = await self.listener.request(self.mac, f"{device}/write/8121", value=START)
        assert response["status"] == 0, response
        await eventually_async(
            lambda: self.reported_states(device) and self.reported_states(device)[-1][0] in END_STATES
        )
        return self.reported_states(device)[-1]

    def reported_states(self, device: Mac) -> list[tuple[State, Error]]:
        reports = self.listener.messages_from(self.mac, f"/device/{device}/property/8120")
        values = [bytes.fromhex(json.loads(each.payload)["value"]) for each in reports]
        return [(State(raw[0]), Error(raw[2])) for raw in values]

    async def version(self, device: Mac = TRACKER) -> str:
        value: str = (await self.listener.request(self.mac, f"{device}/read/8001"))["value"]
        return value


@asynccontextmanager
async def _run_scenario(
    address: BrokerAddress, http: httpx.AsyncClient, fetch_options: ImageFetchOptions | None = None
) -> AsyncIterator[UpdateScenario]:
    mac = fresh_mac()
    builder = FleetBuilder(http, speed=SPEED)
    builder.add(address, mac, site=build_test_site(gateway=mac))
    if fetch_options is not None:
        builder.fleet.uplinks[0].fetch_options = fetch_options
    async with run_listener(address, f"mt/gateway/{mac}/#") as listener, builder.run():
        yield UpdateScenario(listener, mac)


def _answer_with(web: ScriptedHttpServer, target: str, **checks: Any) -> Callable[[str], list[bytes]]:
    answer = build_image_location(f"{web.url}/{target}", **checks)
    return lambda request_id: [encode_image_response(request_id, answer)]


@pytest.mark.rule("firmware-30", "firmware-21")
async def test_a_device_is_updated_from_a_package(
    mosquitto: BrokerAddress, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    async with (
        run_firmware_service(mosquitto, _answer_with(web, "package")) as request_ids,
        _run_scenario(mosquitto, http) as scenario,
    ):
        assert await scenario.update() == (State.DONE, Error.NONE)
        assert await scenario.version() == "03020001"
        assert len(request_ids) == len(web.requests) == 1
        states = list(dict.fromkeys(state for state, _ in scenario.reported_states(TRACKER) if state))
        assert states == [
            State.FETCHING,
            State.TRANSFERRING,
            State.VERIFYING,
            State.APPLYING,
            State.DONE,
        ]


@pytest.mark.rule("firmware-38")
@pytest.mark.parametrize(
    ("target", "checks", "error"),
    [
        ("bare", {}, Error.NONE),
        ("package", {"sha256": hashlib.sha256(PACKAGE).hexdigest(), "size": len(PACKAGE)}, Error.NONE),
        ("package", {"sha256": hashlib.sha256(PACKAGE).hexdigest().upper()}, Error.NONE),
        ("package", {"sha256": hashlib.sha256(BARE).hexdigest()}, Error.BAD_HASH),
        ("package", {"size": len(PACKAGE) + 1}, Error.BAD_HASH),
        ("foreign", {}, Error.WRONG_MODEL),
        ("half", {}, Error.BAD_HASH),
        ("empty", {}, Error.BAD_HASH),
        ("cut", {}, Error.NO_IMAGE),
        ("nowhere", {}, Error.NO_IMAGE),
    ],
)
async def test_an_image_is_accepted_or_rejected_by_its_content(  # noqa: PLR0913 # fixtures and cases
    mosquitto: BrokerAddress,
    http: httpx.AsyncClient,
    web: ScriptedHttpServer,
    *,
    target: str,
    checks: dict[str, Any],
    error: Error,
) -> None:
    async with (
        run_firmware_service(mosquitto, _answer_with(web, target, **checks)),
        _run_scenario(mosquitto, http) as scenario,
    ):
        state, reported_error = await scenario.update()
        assert (state, reported_error) == (State.FAILED if error else State.DONE, error)
        assert await scenario.version() == ("030104" if error else "03020001")


async def test_an_update_fails_if_the_service_has_no_image(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    def answer_no_image(request_id: str) -> list[bytes]:
        return [encode_image_response(request_id, None)]

    async with run_firmware_service(mosquitto, answer_no_image), _run_scenario(mosquitto, http) as scenario:
        assert await scenario.update() == (State.FAILED, Error.NO_IMAGE)


async def _request_without_answer(
    mosquitto: BrokerAddress, http: httpx.AsyncClient, idle_timeout: float
) -> list[str]:
    """Let a gateway request an image without an answer. Return the ids of its image_requests."""
    fetch_options = ImageFetchOptions(idle_timeout=idle_timeout)
    async with (
        run_firmware_service(mosquitto, lambda _: []) as request_ids,
        _run_scenario(mosquitto, http, fetch_options) as scenario,
    ):
        assert await scenario.update() == (State.FAILED, Error.NO_IMAGE)
        with suppress(AssertionError):  # the last image request may be delayed, or was never sent
            await eventually_async(lambda: len(request_ids) == 3, patience=idle_timeout)
    return request_ids


async def test_an_update_fails_if_the_service_does_not_answer(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    request_ids: list[str] = []
    for timeout in RETRY_TIMEOUTS:
        if len(request_ids := await _request_without_answer(mosquitto, http, timeout)) >= 3:
            break
    assert len(request_ids) == 3
    assert len(set(request_ids)) == 1


async def test_an_update_fails_without_a_connection(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http)
    mac = builder.add(mosquitto)
    (uplink,) = builder.fleet.uplinks
    update_request = json.dumps(
        {"value": (ImageKey(ModelNumber("2011"), NEWER).to_bytes() + b"\0").hex()}
    ).encode()
    uplink.gateway.receive(f"mt/gateway/{mac}/request/{mac}/write/8121", update_request, 0.0)
    uplink.gateway.advance(5.0)
    (action,) = uplink.gateway.drain_actions()
    uplink.perform(action)
    payloads = [each.payload for each in uplink.gateway.advance(6.0) if each.topic.endswith("/property/8120")]
    raw = bytes.fromhex(json.loads(payloads[-1])["value"])
    assert (State(raw[0]), Error(raw[2])) == (State.FAILED, Error.NO_IMAGE)


async def test_a_device_can_be_updated_after_a_failure(
    mosquitto: BrokerAddress, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    answers = [build_image_location(f"{web.url}/nowhere"), build_image_location(f"{web.url}/package")]
    async with (
        run_firmware_service(
            mosquitto, lambda request_id: [encode_image_response(request_id, answers.pop(0))]
        ),
        _run_scenario(mosquitto, http) as scenario,
    ):
        assert await scenario.update() == (State.FAILED, Error.NO_IMAGE)
        before = len(scenario.reported_states(TRACKER))
        await scenario.listener.request(scenario.mac, f"{TRACKER}/write/8121", value=START)
        await eventually_async(
            lambda: (
                scenario.reported_states(TRACKER)[before:]
                and scenario.reported_states(TRACKER)[-1][0] is State.DONE
            )
        )


@pytest.mark.rule("gateway-5")
async def test_images_are_requested_on_a_separate_connection(
    broker: Mosquitto, mosquitto: BrokerAddress, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    mac = fresh_mac()
    builder = FleetBuilder(http, speed=SPEED)
    async with Proxy(broker.address) as proxy, run_firmware_service(mosquitto, _answer_with(web, "package")):
        builder.add(proxy.address, mac, site=build_test_site(gateway=mac))
        async with run_listener(mosquitto, f"mt/gateway/{mac}/#") as listener, builder.run():
            assert await UpdateScenario(listener, mac).update() == (State.DONE, Error.NONE)
        first, second = (passage.client_packets(Connect)[0] for passage in proxy.connections)
        assert (first.client_id, second.client_id) == (mac, mac.upper())
        assert second.keep_alive == 15


async def test_a_gateway_whose_mac_has_no_letters_requests_images_on_its_main_connection(
    broker: Mosquitto, mosquitto: BrokerAddress, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    mac = Mac("100000000001")
    builder = FleetBuilder(http, speed=SPEED)
    async with (
        Proxy(broker.address) as proxy,
        run_firmware_service(mosquitto, _answer_with(web, "package")) as request_ids,
    ):
        builder.add(proxy.address, mac, site=build_test_site(gateway=mac))
        async with run_listener(mosquitto, f"mt/gateway/{mac}/#") as listener, builder.run():
            scenario = UpdateScenario(listener, mac)
            assert await scenario.update() == (State.DONE, Error.NONE)
            before = len(scenario.reported_states(TRACKER))
            await listener.request(mac, f"{TRACKER}/write/8121", value=START)
            await eventually_async(
                lambda: (
                    scenario.reported_states(TRACKER)[before:]
                    and scenario.reported_states(TRACKER)[-1][0] is State.DONE
                )
            )
        assert len(request_ids) == 2
        assert len(proxy.connections) == 1, "two connections with the same client id would replace each other"


@pytest.mark.rule("firmware-30")
async def test_the_gateway_command_updates_itself(
    mosquitto: BrokerAddress, web: ScriptedHttpServer, tmp_path: Path
) -> None:
    mac = fresh_mac()
    program = [str(Path(sys.executable).with_name("meshfleet")), "gateway"]
    options = ["--mac", mac, "--devices", "10", "--speed", str(SPEED), "--json"]
    url = f"mqtt://{mosquitto.host}:{mosquitto.port}"
    async with (
        run_firmware_service(mosquitto, _answer_with(web, "bare")),
        run_listener(mosquitto, f"mt/gateway/{mac}/#") as listener,
    ):
        with register_log("the gateway", tmp_path / "errors").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *program, "--broker", url, *options, stdout=asyncio.subprocess.PIPE, stderr=errors
            )
        try:
            assert process.stdout is not None
            event = json.loads(await asyncio.wait_for(process.stdout.readline(), 30))
            assert event["event"] == "connected"
            scenario = UpdateScenario(listener, mac)
            update_value = (ImageKey(ModelNumber("2011"), NEWER).to_bytes() + b"\0").hex()
            assert (await listener.request(mac, f"{mac}/write/8121", value=update_value))["status"] == 0
            await eventually_async(
                lambda: (
                    scenario.reported_states(mac)
                    and scenario.reported_states(mac)[-1] == (State.DONE, Error.NONE)
                )
            )
            assert await scenario.version(mac) == "03020001"
        finally:
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 30) == 0
