"""`meshfleet.testing`: emulated gateways and services that leave no threads, ports or files behind."""

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

import pytest
from rich.pretty import pretty_repr

from meshfleet.client import check
from meshfleet.client.blocking import Fleet
from meshfleet.client.mesh.mesh import Mesh
from meshfleet.emulator import SiteKind, add_walkers, generate_position_site
from meshfleet.errors.mqtt import BrokerUnreachable
from meshfleet.errors.protocol import MalformedInput, MalformedVersion
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.protocol.codes import Kind, Status
from meshfleet.protocol.ids import Mac, Version
from meshfleet.testing import EmulatedGateway, RunningFleet, emulated_gateway, running_fleet
from meshfleet.testing.background import BackgroundContext
from tests.cli.programs import open_client
from tests.eventually import eventually
from tests.servers import Mosquitto, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

LONG = 30.0


def is_listening(url: str) -> bool:
    address = BrokerAddress.parse(url)
    with closing(socket.socket()) as probe:
        return probe.connect_ex((address.host, address.port)) == 0


def list_threads() -> set[str]:
    return {
        thread.name
        for thread in threading.enumerate()
        if thread.name in {"emulated gateway", "running fleet"}
    }


async def read_version(broker: str, gateway: str, prefix: str = "") -> object:
    async with Mesh(broker, prefix=prefix) as mesh:
        return (await mesh.apiversion(gateway, timeout=LONG)).version


# --- Gateways ---


def test_a_gateway_runs_while_a_block_lasts() -> None:
    with emulated_gateway() as gateway:
        assert is_listening(gateway.broker)
        assert len(gateway.devices) == 3
        assert asyncio.run(read_version(gateway.broker, gateway.mac)) == Version(2, 4, 0)
    assert not is_listening(gateway.broker)
    assert not list_threads()


async def test_a_gateway_runs_while_an_async_block_lasts() -> None:
    async with emulated_gateway(devices=5, api_version="2.1.0") as gateway:
        assert len(gateway.devices) == 5
        assert await read_version(gateway.broker, gateway.mac) == Version(2, 1, 0)
    assert not is_listening(gateway.broker)
    assert not list_threads()


async def test_two_gateways_are_independent() -> None:
    async with emulated_gateway() as first, emulated_gateway(mac="02005E00000F") as second:
        assert first.broker != second.broker
        assert second.mac == "02005e00000f"
        assert set(first.devices).isdisjoint(second.devices)
        assert await read_version(second.broker, second.mac) == await read_version(first.broker, first.mac)


async def test_mode_prefix_speed_and_faults_are_passed_to_the_emulator() -> None:
    async with (
        emulated_gateway(mode="decoded", prefix="a/b", speed=600, faults={"silent": 1}) as gateway,
        Mesh(gateway.broker, prefix=gateway.prefix) as mesh,
        asyncio.timeout(LONG),
    ):
        response = await mesh.read(gateway.mac, gateway.devices[0], "8000", timeout=LONG)
        assert response.status == Status.TIMEOUT
        async for report in mesh.reports(kinds=Kind.MEASUREMENT_DECODED):
            assert report.gateway == gateway.mac
            break


async def test_a_gateway_can_use_another_broker(tmp_path: Path) -> None:
    with Mosquitto(tmp_path) as mosquitto:
        url = f"mqtt://127.0.0.1:{mosquitto.address.port}"
        async with emulated_gateway(broker=url) as gateway:
            assert gateway.broker == url
            assert await read_version(url, gateway.mac) == Version(2, 4, 0)


def test_invalid_arguments_are_refused_before_anything_starts() -> None:
    for settings, problem in (
        ({"mode": "cooked"}, ValueError),
        ({"api_version": "new"}, MalformedVersion),
        ({"api_version": "9.0.0"}, MalformedInput),
        ({"faults": {"weather": 1}}, MalformedInput),
        ({"devices": -1}, ValueError),
        ({"mac": "me"}, MalformedInput),
    ):
        with pytest.raises(problem):
            emulated_gateway(**settings)


def test_an_error_while_starting_is_raised_on_entering() -> None:
    with pytest.raises(BrokerUnreachable), emulated_gateway(broker=f"mqtt://127.0.0.1:{free_port()}"):
        pytest.fail("the broker must be unreachable")
    assert not list_threads()


async def test_canceling_while_entering_leaves_no_thread() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        context = emulated_gateway(broker=f"mqtt://127.0.0.1:{silent.getsockname()[1]}")
        entering = asyncio.create_task(context.__aenter__())
        client, _ = await asyncio.to_thread(silent.accept)
        with client:
            entering.cancel()
            await asyncio.wait((entering,))
            assert entering.cancelled()
    assert not list_threads()


def test_an_error_of_the_block_takes_precedence() -> None:
    with pytest.raises(LookupError), emulated_gateway():
        raise LookupError
    assert not list_threads()


def test_an_error_during_the_block_is_raised_at_its_end() -> None:
    may_fail = threading.Event()

    async def fail() -> None:
        await asyncio.to_thread(may_fail.wait)
        raise LookupError

    @asynccontextmanager
    async def run() -> AsyncIterator[str]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            yield "running"

    context = BackgroundContext("emulated gateway", run)
    assert context.__enter__() == "running"
    may_fail.set()
    eventually(lambda: not list_threads())
    with pytest.raises(LookupError):
        context.__exit__(None, None, None)


@pytest.mark.rule("gateway-52")
def test_a_gateway_with_a_site_of_its_own_knows_the_true_place_of_its_devices() -> None:
    site = add_walkers(generate_position_site(Mac("02005e0000aa"), SiteKind.HALL, devices=1), 1)
    still, walker = site.devices[-2:]
    with emulated_gateway(site=site, speed=600) as gateway:
        assert gateway.mac == site.gateway
        assert gateway.devices == tuple(each.mac for each in site.devices)
        assert gateway.true_place(still.mac) == still.position
        eventually(lambda: gateway.true_place(walker.mac) != walker.position)
        with pytest.raises(LookupError):
            gateway.true_place(Mac("02005e0000ab"))


def test_the_representation_of_a_gateway_omits_the_password_of_its_broker() -> None:
    url = "mqtt://me:hunter22@127.0.0.1"
    gateway = EmulatedGateway(broker=url, prefix="", mac=Mac("02005e000001"), devices=())
    assert "hunter22" not in f"{gateway!r} {gateway.__rich_repr__()}"
    with pytest.raises(LookupError, match="does not run here"):
        gateway.true_place(gateway.mac)


# --- Services ---


@pytest.mark.rule("gateway-52")
def test_a_fleet_runs_sites_of_its_own_and_knows_the_true_places() -> None:
    site = add_walkers(generate_position_site(Mac("02005e0000aa"), SiteKind.OFFICES, devices=1), 1)
    with running_fleet(sites=[site]) as running:
        (gateway,) = running.gateways
        assert (gateway.mac, gateway.devices) == (site.gateway, tuple(each.mac for each in site.devices))
        assert [gateway.true_place(each.mac) for each in site.devices[:-1]] == [
            each.position for each in site.devices[:-1]
        ]


@pytest.mark.parametrize("gateways", [0, -1])
def test_a_fleet_needs_at_least_one_gateway(gateways: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        running_fleet(gateways=gateways)


def test_the_representation_of_a_fleet_omits_its_passwords() -> None:
    fleet = RunningFleet(
        url="https://127.0.0.1",
        user="admin",
        password="hunter22",  # noqa: S106 # not a real password
        broker="mqtt://admin:hunter22@127.0.0.1",
        prefix="",
        gateways=(),
    )
    assert "hunter22" not in repr(fleet)
    assert pretty_repr(fleet) == "RunningFleet(url='https://127.0.0.1', gateways=())"


def test_all_devices_of_a_fleet_respond_at_once() -> None:
    with (
        running_fleet(gateways=2, devices=3) as running,
        Fleet(running.url, user=running.user, password=running.password) as fleet,
    ):
        for gateway in running.gateways:
            for device in (gateway.mac, *gateway.devices):
                response = check(fleet.requests.read(device, "8000"))
                assert response.gateway == gateway.mac


def list_connected(running: RunningFleet) -> dict[str, bool]:
    with open_client(running.url, running.password, running.user) as http:
        body = http.get("/api/v1/gateways").json()
    return {each["mac"]: each["connected"] for each in body["items"]}


def test_a_service_runs_with_its_gateways_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process_settings = gc.get_threshold(), sys.getswitchinterval()
    with running_fleet(gateways=2, devices=4) as running:
        assert list(tmp_path.iterdir())
        assert list_connected(running).keys() == {each.mac for each in running.gateways}
        assert [len(each.devices) for each in running.gateways] == [4, 4]
        for gateway in running.gateways:
            assert asyncio.run(read_version(running.broker, gateway.mac)) == Version(2, 4, 0)
        assert running.password not in repr(running)
    assert not is_listening(running.broker)
    assert not list(tmp_path.iterdir())
    assert not list_threads()
    assert (gc.get_threshold(), sys.getswitchinterval()) == process_settings


async def test_a_service_runs_while_an_async_block_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHFLEET_ADMIN_PASSWORD", "a password / with : signs@")
    async with running_fleet(prefix="site", mode="decoded") as running:
        assert running.password == "a password / with : signs@"  # noqa: S105 # set above
        mac = running.gateways[0].mac
        assert await read_version(running.broker, mac, running.prefix) == Version(2, 4, 0)
        assert (await asyncio.to_thread(list_connected, running)).keys() == {mac}
    assert not list_threads()


def test_the_package_does_not_import_pytest() -> None:
    code = "import sys, meshfleet.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
