"""`meshfleet.testing`: real parts for other people's tests, which leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import httpx
import pytest
from rich.pretty import pretty_repr

from meshfleet.client import check
from meshfleet.client.blocking import Fleet
from meshfleet.client.mesh.mesh import Mesh
from meshfleet.errors.mqtt import BrokerUnreachable
from meshfleet.errors.protocol import MalformedVersion, WireError
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.protocol.codes import Kind, Status
from meshfleet.protocol.ids import Mac, Version
from meshfleet.testing import EmulatedGateway, RunningFleet, emulated_gateway, running_fleet
from meshfleet.testing.background import BackgroundContext
from tests.eventually import eventually
from tests.servers import NO_TRUSTED_AUTHORITIES, Mosquitto, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

LONG = 30.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def is_open(url: str) -> bool:
    place = BrokerAddress.parse(url)
    with closing(socket.socket()) as probe:
        return probe.connect_ex((place.host, place.port)) == 0


def threads() -> set[str]:
    return {each.name for each in threading.enumerate() if each.name in {"emulated gateway", "running fleet"}}


async def version(broker: str, gateway: str, prefix: str = "") -> object:
    async with Mesh(broker, prefix=prefix) as mesh:
        return (await mesh.apiversion(gateway, timeout=LONG)).version


# --- A gateway ---


def test_a_gateway_is_there_while_a_block_lasts() -> None:
    with emulated_gateway() as gateway:
        assert is_open(gateway.broker)
        assert len(gateway.devices) == 3
        assert asyncio.run(version(gateway.broker, gateway.mac)) == Version(2, 4, 0)
    assert not is_open(gateway.broker)
    assert not threads()


async def test_a_gateway_is_there_while_an_async_block_lasts() -> None:
    async with emulated_gateway(devices=5, api_version="2.1.0") as gateway:
        assert len(gateway.devices) == 5
        assert await version(gateway.broker, gateway.mac) == Version(2, 1, 0)
    assert not is_open(gateway.broker)
    assert not threads()


async def test_two_gateways_do_not_know_each_other() -> None:
    async with emulated_gateway() as one, emulated_gateway(mac="02005E00000F") as other:
        assert one.broker != other.broker
        assert other.mac == "02005e00000f"
        assert set(one.devices).isdisjoint(other.devices)
        assert await version(other.broker, other.mac) == await version(one.broker, one.mac)


async def test_mode_prefix_speed_and_faults_are_those_of_the_emulator() -> None:
    async with (
        emulated_gateway(mode="decoded", prefix="a/b", speed=600, faults={"silent": 1}) as gateway,
        Mesh(gateway.broker, prefix=gateway.prefix) as mesh,
        asyncio.timeout(LONG),
    ):
        answer = await mesh.read(gateway.mac, gateway.devices[0], "8000", timeout=LONG)
        assert answer.status == Status.TIMEOUT
        async for report in mesh.reports(kinds=Kind.MEASUREMENT_DECODED):
            assert report.gateway == gateway.mac
            break


async def test_a_gateway_can_be_put_on_another_broker(tmp_path: Path) -> None:
    with Mosquitto(tmp_path) as mosquitto:
        url = f"mqtt://127.0.0.1:{mosquitto.address.port}"
        async with emulated_gateway(broker=url) as gateway:
            assert gateway.broker == url
            assert await version(url, gateway.mac) == Version(2, 4, 0)


def test_mistakes_are_told_before_anything_starts() -> None:
    for settings, problem in (
        ({"mode": "cooked"}, ValueError),
        ({"api_version": "new"}, MalformedVersion),
        ({"api_version": "9.0.0"}, WireError),
        ({"faults": {"weather": 1}}, WireError),
        ({"devices": -1}, ValueError),
        ({"mac": "me"}, WireError),
    ):
        with pytest.raises(problem):
            emulated_gateway(**settings)


def test_what_goes_wrong_on_the_way_in_is_raised_there_and_leaves_nothing() -> None:
    with pytest.raises(BrokerUnreachable), emulated_gateway(broker=f"mqtt://127.0.0.1:{free_port()}"):
        pytest.fail("there is no broker")
    assert not threads()


async def test_who_is_cancelled_on_the_way_in_leaves_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = emulated_gateway(broker=f"mqtt://127.0.0.1:{silent.getsockname()[1]}")
        entering = asyncio.create_task(place.__aenter__())
        client, _ = await asyncio.to_thread(silent.accept)
        with client:
            entering.cancel()
            await asyncio.wait((entering,))
            assert entering.cancelled()
    assert not threads()


def test_an_error_of_the_block_is_the_one_that_is_seen() -> None:
    with pytest.raises(LookupError), emulated_gateway():
        raise LookupError
    assert not threads()


def test_what_goes_wrong_during_the_block_is_raised_at_its_end() -> None:
    is_broken = threading.Event()

    async def break_down() -> None:
        await asyncio.to_thread(is_broken.wait)
        raise LookupError

    @asynccontextmanager
    async def make() -> AsyncIterator[str]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(break_down())
            yield "it runs"

    place = BackgroundContext("emulated gateway", make)
    assert place.__enter__() == "it runs"
    is_broken.set()
    eventually(lambda: not threads())
    with pytest.raises(LookupError):
        place.__exit__(None, None, None)


def test_a_gateway_hides_the_password_of_its_broker() -> None:
    url = "mqtt://me:hunter22@127.0.0.1"
    shown = EmulatedGateway(broker=url, prefix="", mac=Mac("02005e000001"), devices=())
    assert "hunter22" not in f"{shown!r} {shown.__rich_repr__()}"


# --- A service ---


@pytest.mark.parametrize("gateways", [0, -1])
def test_a_fleet_has_gateways(gateways: int) -> None:
    with pytest.raises(ValueError, match="one gateway or more"):
        running_fleet(gateways=gateways)


def test_a_fleet_hides_its_passwords() -> None:
    shown = RunningFleet(
        url="https://127.0.0.1",
        user="admin",
        password="hunter22",  # noqa: S106 # of no account
        broker="mqtt://admin:hunter22@127.0.0.1",
        prefix="",
        gateways=(),
    )
    assert "hunter22" not in repr(shown)
    assert pretty_repr(shown) == "RunningFleet(url='https://127.0.0.1', gateways=())"


def test_all_devices_of_a_fleet_answer_at_once() -> None:
    with (
        running_fleet(gateways=2, devices=3) as place,
        Fleet(place.url, user=place.user, password=place.password) as fleet,
    ):
        for gateway in place.gateways:
            for device in (gateway.mac, *gateway.devices):
                answer = check(fleet.requests.read(device, "8000"))
                assert answer.gateway == gateway.mac


def connected(place: RunningFleet) -> dict[str, bool]:
    with httpx.Client(base_url=place.url, verify=NO_TRUSTED_AUTHORITIES, trust_env=False) as http:
        login = {"username": place.user, "password": place.password}
        token = http.post("/api/v1/auth/login", json=login).json()["authToken"]
        answer = http.get("/api/v1/gateways", headers={"Authorization": f"Bearer {token}"}).json()
    return {each["mac"]: each["connected"] for each in answer["items"]}


def test_a_service_runs_with_its_gateways_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    manners = gc.get_threshold(), sys.getswitchinterval()
    with running_fleet(gateways=2, devices=4) as place:
        assert list(tmp_path.iterdir())
        assert connected(place).keys() == {each.mac for each in place.gateways}
        assert [len(each.devices) for each in place.gateways] == [4, 4]
        for each in place.gateways:
            assert asyncio.run(version(place.broker, each.mac)) == Version(2, 4, 0)
        assert place.password not in repr(place)
    assert not is_open(place.broker)
    assert not list(tmp_path.iterdir())
    assert not threads()
    assert (gc.get_threshold(), sys.getswitchinterval()) == manners


async def test_a_service_runs_while_an_async_block_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHFLEET_ADMIN_PASSWORD", "a password / with : signs@")
    async with running_fleet(prefix="site", mode="decoded") as place:
        assert place.password == "a password / with : signs@"  # noqa: S105 # given above
        mac = place.gateways[0].mac
        assert await version(place.broker, mac, place.prefix) == Version(2, 4, 0)
        assert (await asyncio.to_thread(connected, place)).keys() == {mac}
    assert not threads()


def test_nobody_needs_pytest_for_it() -> None:
    look = "import sys, meshfleet.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], check=False, timeout=60).returncode == 0
