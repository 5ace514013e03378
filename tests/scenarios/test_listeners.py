"""Where MQTT clients come in, what gateways are told of it, and what ends their stay."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import httpx
import pytest

from meshfleet.mqtt.codec.packets import Connack, Puback, Publish, Will
from meshfleet.rest import LOGIN_PATH, Role
from tests.cli.programs import TEST_TIMEOUT, Program
from tests.eventually import eventually, eventually_async
from tests.scenarios.service_process import PASSWORD, ServiceProcess, loopback_options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.service.embedded_broker.mqtt_accounts import Credentials

pytestmark = pytest.mark.anyio

D = "02005e0000aa"
REPORTS = "mt/gateway/+/device/#"
GATEWAYS = "/api/v1/gateways"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Listens at all addresses, at ports that it was not told."""
    everywhere = ["--mqtt", "0.0.0.0:0", "--mqtt-ws", "127.0.0.1:0"]
    with ServiceProcess(tmp_path_factory.mktemp("service"), *everywhere) as running:
        yield running


@pytest.fixture
async def service(shared: ServiceProcess) -> AsyncIterator[ServiceProcess]:
    yield shared
    await shared.disconnect_all()


def report(gateway: str) -> str:
    return f"mt/gateway/{gateway}/device/{D}/measurement/8100"


# --- Where it is ---


@pytest.mark.rule("broker-1", "rest-168")
async def test_a_gateway_is_told_the_real_port_and_the_host_by_which_the_service_was_found(
    service: ServiceProcess,
) -> None:
    assert set(service.mqtt) == {"mqtt", "ws"}
    port = service.mqtt["mqtt"].port
    assert port != 0
    told = service.call("POST", GATEWAYS, {"mac": "02005e300001"})
    assert told["broker"] == {"host": "127.0.0.1", "port": port, "tls": False}
    path = f"{GATEWAYS}/02005e300001/credentials"
    told = service.call("POST", path, Host="fleet.example.org:8443")
    assert told["broker"] == {"host": "fleet.example.org", "port": port, "tls": False}


@pytest.mark.rule("broker-1", "rest-168")
def test_a_service_can_leave_mqtt_off(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, "--mqtt", "off") as service:
        assert service.mqtt == {}
        login = {"username": "admin", "password": PASSWORD}
        token = httpx.post(service.url + LOGIN_PATH, json=login, timeout=TEST_TIMEOUT).json()["authToken"]
        answer = httpx.post(
            service.url + GATEWAYS,
            json={"mac": "02005e300001"},
            headers={"Authorization": f"Bearer {token}"},
            timeout=TEST_TIMEOUT,
        )
        assert (answer.status_code, answer.json()["code"]) == (409, "no-broker")
        assert service.call("GET", GATEWAYS)["items"] == []
        assert service.stop() == (0, "")


@pytest.mark.rule("rest-168")
def test_a_gateway_is_told_the_public_address_of_the_broker(tmp_path: Path) -> None:
    given = [*loopback_options("--mqtt"), "--public-mqtt", "mqtts://mqtt.example.org"]
    with ServiceProcess(tmp_path, *given) as service:
        told = service.call("POST", GATEWAYS, {"mac": "02005e300001"})
        assert told["broker"] == {"host": "mqtt.example.org", "port": 8883, "tls": True}


@pytest.mark.parametrize("entrance", ["--mqtt", "--mqtt-ws"])
def test_a_port_that_is_taken_is_told_with_the_option_that_chooses_another(
    tmp_path: Path, entrance: str
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        given = ["serve", "--data", str(tmp_path / "data"), "--http", "127.0.0.1:0", "--mqtt", "off"]
        with Program(*given, entrance, place) as program:
            code, output, errors = program.wait_for_exit()
    assert (code, output, len(errors.splitlines())) == (1, "", 1)
    assert place in errors
    assert f"{entrance} HOST:PORT" in errors


async def test_who_is_there_before_the_service_is_ready_waits_and_is_let_in(tmp_path: Path) -> None:
    """After a restart all gateways stand at the entrance."""
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as service:
        gateways = [service.claim(f"02005e31000{number}") for number in range(5)]
        assert service.stop() == (0, "")
        starting = asyncio.create_task(asyncio.to_thread(service.start))
        answers = await asyncio.gather(*(_connect_until_accepted(service, each) for each in gateways))
        assert answers == [Connack()] * 5
        await starting
        await service.disconnect_all()


async def _connect_until_accepted(service: ServiceProcess, who: Credentials) -> Connack:
    async def answer() -> Connack | None:
        try:
            return (await service.try_connect(who))[1]
        except ConnectionRefusedError:
            return None

    return await eventually_async(answer, "to be let in")


# --- What is seen of it ---


async def test_figures_tell_of_the_broker(service: ServiceProcess) -> None:
    gateway = service.claim("02005e300002")
    eventually(lambda: _metrics(service)["connections"] == 0)  # of the tests before, which have hung up
    before = _metrics(service)
    client = await service.connect(gateway, clean=False)
    client.send(Publish(report(gateway.user), b"{}", 1, packet_id=1))
    assert await client.expect(Puback) == Puback(1)
    _, refused = await service.try_connect(gateway._replace(password="wrong"))  # noqa: S106 # of nobody
    assert refused.code == 4
    after = _metrics(service)
    grown = {name: after[name] - before[name] for name in after}
    assert grown == {
        "connections": 1,
        "sessions": 1,
        "retained": 0,
        "owed_bytes": 0,
        "received_total": 1,
        "delivered_total": 0,
        "cut_off_total": 0,
        "turned_away_total": 0,
        "admitted_total": 1,
        "refused_total": 1,
    }


def _metrics(service: ServiceProcess) -> dict[str, float]:
    found = re.findall(r"^meshfleet_mqtt_(\w+) (\S+)$", service.call("GET", "/metrics"), re.MULTILINE)
    return {name: float(value) for name, value in found if not name.endswith("_created")}


# --- What is said there ---


@pytest.mark.rule("broker-2", "broker-3")
async def test_a_report_that_makes_no_sense_is_acknowledged_like_any_other(service: ServiceProcess) -> None:
    """Else its gateway would send it for ever, and nothing behind it."""
    gateway = service.claim("02005e300006")
    client = await service.connect(gateway)
    own = f"mt/gateway/{gateway.user}/device"
    said = [
        (report(gateway.user), b"{"),
        (report(gateway.user), b"\xff\xfe"),
        (report(gateway.user), b""),
        (report(gateway.user), bytes(262_145)),  # more than is taken
        (f"{own}/nobody/measurement/8100", b"{}"),
        (f"{own}/{D}/of-a-later-version/8100", b"{}"),
    ]
    for packet_id, (topic, payload) in enumerate(said, 1):
        client.send(Publish(topic, payload, 1, packet_id=packet_id))
        assert await client.expect(Puback) == Puback(packet_id)
    assert await client.receive_until_pong() == []


# --- What ends a stay ---


@pytest.mark.rule("broker-4", "broker-19")
async def test_a_gateway_that_is_released_is_cut_off_and_stays_out(service: ServiceProcess) -> None:
    mac = "02005e300003"
    gateway = service.claim(mac)
    viewer = service.add_user("eva", Role.VIEWER)
    ear = await service.connect_subscriber(viewer, f"mt/gateway/{mac}/device/#")
    client = await service.connect(gateway, will=Will(report(mac), b"will", 1))
    client.send(Publish(report(mac), b"before", 1, packet_id=1))
    assert await client.expect(Puback) == Puback(1)
    assert (await ear.expect(Publish)).payload == b"before"
    service.release(mac)
    assert await client.receive_until_closed() == []
    _, answer = await service.try_connect(gateway)
    assert answer.code == 4
    assert await ear.receive_until_pong() == [], "its will does not count"


@pytest.mark.rule("broker-10", "auth-29")
async def test_a_password_that_another_process_resets_counts_at_once(service: ServiceProcess) -> None:
    person = service.add_user("ada", Role.VIEWER)
    client, other = await service.connect(person), await service.connect(service.claim("02005e300004"))
    given = ["users", "reset-password", "--json", "--data", str(service.data), "ada"]
    with Program(*given) as program:
        reset = json.loads(program.read_line())
        assert program.wait_for_exit()[0] == 0
    assert await client.receive_until_closed() == []
    assert await other.receive_until_pong() == []
    _, answer = await service.try_connect(person)
    assert answer.code == 4
    await service.connect(person._replace(password=reset["password"]))


@pytest.mark.rule("broker-11", "broker-15")
async def test_a_key_that_is_revoked_ends_its_connections(service: ServiceProcess) -> None:
    issued = service.call("POST", "/api/v1/api-keys", {"name": "billing", "role": "viewer"})
    program = service.add_user("any", Role.VIEWER)._replace(user="apikey", password=issued["key"])
    client = await service.connect_subscriber(program, REPORTS)
    service.call("DELETE", f"/api/v1/api-keys/{issued['id']}")
    assert await client.receive_until_closed() == []
    _, answer = await service.try_connect(program)
    assert answer.code == 4


async def test_a_service_that_stops_publishes_wills_and_keeps_what_is_owed(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as service:
        gateway, viewer = service.claim("02005e300005"), service.add_user("eva", Role.VIEWER)
        ear = await service.connect_subscriber(viewer, REPORTS, clean=False)
        client = await service.connect(gateway, will=Will(report(gateway.user), b"will", 1))
        assert service.stop() == (0, "")
        assert await client.receive_until_closed() == []
        assert [each for each in await ear.receive_until_closed() if not isinstance(each, Publish)] == []
        service.start()
        ear, answer = await service.try_connect(viewer, clean=False)
        assert answer == Connack(session_present=True)
        assert (await ear.expect(Publish)).payload == b"will"
        assert await ear.receive_until_pong() == []
        await service.disconnect_all()


async def test_no_log_holds_what_somebody_came_with_or_said(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt"), "--log-level", "debug") as service:
        issued = service.call("POST", "/api/v1/api-keys", {"name": "billing", "role": "operator"})
        gateway, person = service.claim("02005e300007"), service.add_user("otto", Role.OPERATOR)
        program = person._replace(user="apikey", password=issued["key"])
        for each in (gateway, person, program):
            await service.connect(each)
            _, answer = await service.try_connect(each._replace(password=f"not-{each.password}"))
            assert answer.code == 4
        asking = await service.connect(person, will=Will(_request(gateway.user), b"hidden-will", 1))
        asking.send(Publish(_request(gateway.user), b'{"key":"hidden-key"}', 1, packet_id=1))
        assert await asking.expect(Puback) == Puback(1)
        asking.send(Publish("mt/forbidden", b"hidden-payload"))
        assert await asking.receive_until_closed() == []
        await service.disconnect_all()
        code, errors = service.stop()
    assert code == 0
    assert "refused: wrong user name or password" in errors
    assert "PUBLISH to a forbidden topic" in errors
    for secret in (PASSWORD, gateway.password, issued["key"], "hidden-"):
        assert secret not in errors


def _request(gateway: str) -> str:
    return f"mt/gateway/{gateway}/request/{D}/read/8000"
