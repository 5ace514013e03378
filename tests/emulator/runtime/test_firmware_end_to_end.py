"""A firmware update with everything that belongs to it: broker, service, server of images, gateway."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from meshfleet.emulator.runtime.image_fetcher import ImageFetchOptions
from meshfleet.emulator.updates.update_state import Error, ImageKey, State
from meshfleet.mqtt.codec.packets import Connect
from meshfleet.protocol.diagnostics import encode_answer
from meshfleet.protocol.firmware_image import build_package
from meshfleet.protocol.ids import Mac, ModelNumber, Version
from tests.emulator.runtime.firmware_service import build_answer, run_firmware_service
from tests.emulator.runtime.fleet_builder import FleetBuilder, Listener, fresh_mac, run_listener
from tests.emulator.runtime.http_server import ScriptedHttpServer, build_response
from tests.emulator.updates.harness import TRACKER, build_house_site
from tests.eventually import RETRY_TIMEOUTS, eventually_async
from tests.mqtt.client.proxy import Proxy
from tests.mqtt.client.proxy import to_address as at
from tests.program_logs import register_log
from tests.servers import NO_TRUSTED_AUTHORITIES, Mosquitto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from meshfleet.mqtt.client import BrokerAddress

pytestmark = pytest.mark.anyio

MODEL, NEWER = ModelNumber("0005"), Version(3, 2, 0, 1)
PACKAGE = build_package(b"firmware" * 500, model_number=MODEL, version=NEWER)
FOREIGN = build_package(b"firmware" * 500, model_number=ModelNumber("0018"), version=NEWER)
BARE = b"\x7fblob" * 500
START = (ImageKey(MODEL, NEWER).to_bytes() + b"\0").hex()
SPEED = 300.0
ENDS = (State.DONE, State.FAILED)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path_factory.mktemp("mosquitto"), "set_tcp_nodelay true") as it:
        yield it


@pytest.fixture
def mosquitto(broker: Mosquitto) -> BrokerAddress:
    return at(broker.address)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES, trust_env=False) as client:
        yield client


@pytest.fixture
async def web() -> AsyncIterator[ScriptedHttpServer]:
    pages = {
        "/package": build_response(200, PACKAGE),
        "/foreign": build_response(200, FOREIGN),
        "/bare": build_response(200, BARE),
        "/cut": build_response(200, PACKAGE[:1000], Content_Length=str(len(PACKAGE))),
        "/half": build_response(200, PACKAGE[:1000]),
        "/empty": build_response(200, b""),
    }
    async with ScriptedHttpServer.serving(pages) as web:
        yield web


class Scene:
    """A gateway that runs, and somebody who watches its devices."""

    def __init__(self, listener: Listener, mac: Mac) -> None:
        self.listener = listener
        self.mac = mac

    async def update(self, device: Mac = TRACKER) -> tuple[State, Error]:
        """Start an update and wait for its end."""
        response = await self.listener.request(self.mac, f"{device}/write/8121", value=START)
        assert response["status"] == 0, response
        await eventually_async(lambda: self.told(device) and self.told(device)[-1][0] in ENDS)
        return self.told(device)[-1]

    def told(self, device: Mac) -> list[tuple[State, Error]]:
        reports = self.listener.messages_from(self.mac, f"/device/{device}/property/8120")
        values = [bytes.fromhex(json.loads(each.payload)["value"]) for each in reports]
        return [(State(raw[0]), Error(raw[2])) for raw in values]

    async def version(self, device: Mac = TRACKER) -> str:
        value: str = (await self.listener.request(self.mac, f"{device}/read/8001"))["value"]
        return value


@asynccontextmanager
async def _scene(
    address: BrokerAddress, http: httpx.AsyncClient, terms: ImageFetchOptions | None = None
) -> AsyncIterator[Scene]:
    mac = fresh_mac()
    crew = FleetBuilder(http, speed=SPEED)
    crew.add(address, mac, site=build_house_site(gateway=mac))
    if terms is not None:
        crew.fleet.uplinks[0].fetch_options = terms
    async with run_listener(address, f"mt/gateway/{mac}/#") as listener, crew.run():
        yield Scene(listener, mac)


def _offer(web: ScriptedHttpServer, page: str, **checks: Any) -> Callable[[str], list[bytes]]:
    told = build_answer(f"{web.url}/{page}", **checks)
    return lambda asked: [encode_answer(asked, told)]


@pytest.mark.rule("firmware-30", "firmware-21")
async def test_a_device_gets_its_version_from_a_package(
    mosquitto: BrokerAddress, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    async with (
        run_firmware_service(mosquitto, _offer(web, "package")) as asked,
        _scene(mosquitto, http) as scene,
    ):
        assert await scene.update() == (State.DONE, Error.NONE)
        assert await scene.version() == "03020001"
        assert len(asked) == len(web.requests) == 1
        states = list(dict.fromkeys(state for state, _ in scene.told(TRACKER) if state))
        assert states == [
            State.FETCHING,
            State.TRANSFERRING,
            State.VERIFYING,
            State.APPLYING,
            State.DONE,
        ]


@pytest.mark.rule("firmware-38")
@pytest.mark.parametrize(
    ("page", "checks", "error"),
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
async def test_an_image_is_taken_or_refused_for_what_it_is(  # noqa: PLR0913 # fixtures and cases
    mosquitto: BrokerAddress,
    http: httpx.AsyncClient,
    web: ScriptedHttpServer,
    *,
    page: str,
    checks: dict[str, Any],
    error: Error,
) -> None:
    async with run_firmware_service(mosquitto, _offer(web, page, **checks)), _scene(mosquitto, http) as scene:
        state, told = await scene.update()
        assert (state, told) == (State.FAILED if error else State.DONE, error)
        assert await scene.version() == ("030104" if error else "03020001")


async def test_an_image_that_the_service_does_not_have_is_no_image(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    def no(asked: str) -> list[bytes]:
        return [encode_answer(asked, None)]

    async with run_firmware_service(mosquitto, no), _scene(mosquitto, http) as scene:
        assert await scene.update() == (State.FAILED, Error.NO_IMAGE)


async def _ask_in_vain(mosquitto: BrokerAddress, http: httpx.AsyncClient, limit: float) -> list[str]:
    """Let a gateway ask for an image without an answer, so many seconds each time; gives what it asked."""
    terms = ImageFetchOptions(idle_timeout=limit)
    async with (
        run_firmware_service(mosquitto, lambda _: []) as asked,
        _scene(mosquitto, http, terms) as scene,
    ):
        assert await scene.update() == (State.FAILED, Error.NO_IMAGE)
        with suppress(AssertionError):  # the last question may still be on its way, or was never sent
            await eventually_async(lambda: len(asked) == 3, patience=limit)
    return asked


async def test_without_any_answer_there_is_no_image(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    asked: list[str] = []
    for limit in RETRY_TIMEOUTS:
        if len(asked := await _ask_in_vain(mosquitto, http, limit)) >= 3:
            break
    assert len(asked) == 3
    assert len(set(asked)) == 1


async def test_a_gateway_without_a_connection_gets_no_image(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http)
    mac = crew.add(mosquitto)
    (one,) = crew.fleet.uplinks
    start = json.dumps({"value": (ImageKey(ModelNumber("2011"), NEWER).to_bytes() + b"\0").hex()}).encode()
    one.gateway.receive(f"mt/gateway/{mac}/request/{mac}/write/8121", start, 0.0)
    one.gateway.advance(5.0)
    (chore,) = one.gateway.drain_actions()
    one.perform(chore)
    said = [each.payload for each in one.gateway.advance(6.0) if each.topic.endswith("/property/8120")]
    raw = bytes.fromhex(json.loads(said[-1])["value"])
    assert (State(raw[0]), Error(raw[2])) == (State.FAILED, Error.NO_IMAGE)


async def test_a_device_can_be_updated_after_a_failure(
    mosquitto: BrokerAddress, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    answers = [build_answer(f"{web.url}/nowhere"), build_answer(f"{web.url}/package")]
    async with (
        run_firmware_service(mosquitto, lambda asked: [encode_answer(asked, answers.pop(0))]),
        _scene(mosquitto, http) as scene,
    ):
        assert await scene.update() == (State.FAILED, Error.NO_IMAGE)
        before = len(scene.told(TRACKER))
        await scene.listener.request(scene.mac, f"{TRACKER}/write/8121", value=START)
        await eventually_async(
            lambda: scene.told(TRACKER)[before:] and scene.told(TRACKER)[-1][0] is State.DONE
        )


@pytest.mark.rule("gateway-5")
async def test_images_are_asked_for_on_a_connection_of_their_own(
    broker: Mosquitto, mosquitto: BrokerAddress, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    mac = fresh_mac()
    crew = FleetBuilder(http, speed=SPEED)
    async with Proxy(broker.address) as proxy, run_firmware_service(mosquitto, _offer(web, "package")):
        crew.add(proxy.address, mac, site=build_house_site(gateway=mac))
        async with run_listener(mosquitto, f"mt/gateway/{mac}/#") as listener, crew.run():
            assert await Scene(listener, mac).update() == (State.DONE, Error.NONE)
        first, second = (passage.client_packets(Connect)[0] for passage in proxy.connections)
        assert (first.client_id, second.client_id) == (mac, mac.upper())
        assert second.keep_alive == 15


async def test_a_gateway_whose_mac_has_no_letters_asks_on_the_connection_that_it_has(
    broker: Mosquitto, mosquitto: BrokerAddress, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    mac = Mac("100000000001")
    crew = FleetBuilder(http, speed=SPEED)
    async with (
        Proxy(broker.address) as proxy,
        run_firmware_service(mosquitto, _offer(web, "package")) as asked,
    ):
        crew.add(proxy.address, mac, site=build_house_site(gateway=mac))
        async with run_listener(mosquitto, f"mt/gateway/{mac}/#") as listener, crew.run():
            scene = Scene(listener, mac)
            assert await scene.update() == (State.DONE, Error.NONE)
            before = len(scene.told(TRACKER))
            await listener.request(mac, f"{TRACKER}/write/8121", value=START)
            await eventually_async(
                lambda: scene.told(TRACKER)[before:] and scene.told(TRACKER)[-1][0] is State.DONE
            )
        assert len(asked) == 2
        assert len(proxy.connections) == 1, "two connections of one name would push each other off"


@pytest.mark.rule("firmware-30")
async def test_the_program_updates_a_device(
    mosquitto: BrokerAddress, web: ScriptedHttpServer, tmp_path: Path
) -> None:
    mac = fresh_mac()
    program = [str(Path(sys.executable).with_name("meshfleet")), "gateway"]
    options = ["--mac", mac, "--devices", "10", "--speed", str(SPEED), "--json"]
    url = f"mqtt://{mosquitto.host}:{mosquitto.port}"
    async with (
        run_firmware_service(mosquitto, _offer(web, "bare")),
        run_listener(mosquitto, f"mt/gateway/{mac}/#") as listener,
    ):
        with register_log("the gateway", tmp_path / "errors").open("wb") as errors:
            running = await asyncio.create_subprocess_exec(
                *program, "--broker", url, *options, stdout=asyncio.subprocess.PIPE, stderr=errors
            )
        try:
            assert running.stdout is not None
            said = json.loads(await asyncio.wait_for(running.stdout.readline(), 30))
            assert said["event"] == "connected"
            scene = Scene(listener, mac)
            start = (ImageKey(ModelNumber("2011"), NEWER).to_bytes() + b"\0").hex()
            assert (await listener.request(mac, f"{mac}/write/8121", value=start))["status"] == 0
            await eventually_async(
                lambda: scene.told(mac) and scene.told(mac)[-1] == (State.DONE, Error.NONE)
            )
            assert await scene.version(mac) == "03020001"
        finally:
            running.terminate()
            assert await asyncio.wait_for(running.wait(), 30) == 0
