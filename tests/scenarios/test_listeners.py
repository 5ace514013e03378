"""MQTT listeners of the service: their addresses, admission of clients, and the end of connections."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import Connack, Puback, Publish, Will
from meshfleet.rest.accounts import Role
from tests.cli.programs import Program, open_client
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
    """Run a service that listens at all addresses, at ports chosen by the system."""
    options = ["--mqtt", "0.0.0.0:0", "--mqtt-ws", "127.0.0.1:0"]
    with ServiceProcess(tmp_path_factory.mktemp("service"), *options) as running:
        yield running


@pytest.fixture
async def service(shared: ServiceProcess) -> AsyncIterator[ServiceProcess]:
    yield shared
    await shared.disconnect_all()


def report(gateway: str) -> str:
    return f"mt/gateway/{gateway}/device/{D}/measurement/8100"


# --- Addresses ---


@pytest.mark.rule("broker-1", "rest-168")
async def test_a_claim_returns_the_real_port_and_the_host_of_the_request(
    service: ServiceProcess,
) -> None:
    assert set(service.mqtt) == {"mqtt", "ws"}
    port = service.mqtt["mqtt"].port
    assert port != 0
    claim = service.call("POST", GATEWAYS, {"mac": "02005e300001"})
    assert claim["broker"] == {"host": "127.0.0.1", "port": port, "tls": False}
    path = f"{GATEWAYS}/02005e300001/credentials"
    claim = service.call("POST", path, Host="fleet.example.org:8443")
    assert claim["broker"] == {"host": "fleet.example.org", "port": port, "tls": False}


@pytest.mark.rule("broker-1", "rest-168")
def test_mqtt_can_be_turned_off(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, "--mqtt", "off") as service:
        assert service.mqtt == {}
        with open_client(service.url, PASSWORD) as client:
            response = client.post(GATEWAYS, json={"mac": "02005e300001"})
        assert (response.status_code, response.json()["code"]) == (409, "no-broker")
        assert service.call("GET", GATEWAYS)["items"] == []
        assert service.stop() == (0, "")


@pytest.mark.rule("rest-168")
def test_a_claim_returns_the_public_address_of_the_broker(tmp_path: Path) -> None:
    options = [*loopback_options("--mqtt"), "--public-mqtt", "mqtts://mqtt.example.org"]
    with ServiceProcess(tmp_path, *options) as service:
        claim = service.call("POST", GATEWAYS, {"mac": "02005e300001"})
        assert claim["broker"] == {"host": "mqtt.example.org", "port": 8883, "tls": True}


@pytest.mark.parametrize("option", ["--mqtt", "--mqtt-ws"])
def test_an_occupied_port_is_reported_with_the_option_to_change_it(tmp_path: Path, option: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as occupied:
        address = f"127.0.0.1:{occupied.getsockname()[1]}"
        arguments = ["serve", "--data", str(tmp_path / "data"), "--http", "127.0.0.1:0", "--mqtt", "off"]
        with Program(*arguments, option, address) as program:
            code, output, errors = program.wait_for_exit()
    assert (code, output, len(errors.splitlines())) == (1, "", 1)
    assert address in errors
    assert f"{option} HOST:PORT" in errors


async def test_clients_that_connect_before_the_service_is_ready_wait_and_are_accepted(tmp_path: Path) -> None:
    """Connect several gateways during a restart, as they do after every restart."""
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as service:
        gateways = [service.claim(f"02005e31000{number}") for number in range(5)]
        assert service.stop() == (0, "")
        starting = asyncio.create_task(asyncio.to_thread(service.start))
        connacks = await asyncio.gather(*(_connect_until_accepted(service, each) for each in gateways))
        assert connacks == [Connack()] * 5
        await starting
        await service.disconnect_all()


async def _connect_until_accepted(service: ServiceProcess, credentials: Credentials) -> Connack:
    async def try_once() -> Connack | None:
        try:
            return (await service.try_connect(credentials))[1]
        except ConnectionRefusedError:
            return None

    return await eventually_async(try_once, "an accepted connection")


# --- Metrics ---


async def test_metrics_count_connections_and_messages_of_the_broker(service: ServiceProcess) -> None:
    gateway = service.claim("02005e300002")
    eventually(
        lambda: _read_metrics(service)["connections"] == 0
    )  # the clients of earlier tests have disconnected
    before = _read_metrics(service)
    client = await service.connect(gateway, clean=False)
    client.send(Publish(report(gateway.user), b"{}", 1, packet_id=1))
    assert await client.expect(Puback) == Puback(1)
    _, refused = await service.try_connect(gateway._replace(password="wrong"))  # noqa: S106 # wrong on purpose
    assert refused.code == 4
    after = _read_metrics(service)
    changes = {name: after[name] - before[name] for name in after}
    assert changes == {
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


def _read_metrics(service: ServiceProcess) -> dict[str, float]:
    metrics = re.findall(r"^meshfleet_mqtt_(\w+) (\S+)$", service.call("GET", "/metrics"), re.MULTILINE)
    return {name: float(value) for name, value in metrics if not name.endswith("_created")}


# --- Messages ---


@pytest.mark.rule("broker-2", "broker-3")
async def test_an_invalid_report_is_acknowledged_like_any_other(service: ServiceProcess) -> None:
    """Acknowledge it, because its gateway would otherwise resend it forever, and nothing after it."""
    gateway = service.claim("02005e300006")
    client = await service.connect(gateway)
    prefix = f"mt/gateway/{gateway.user}/device"
    messages = [
        (report(gateway.user), b"{"),
        (report(gateway.user), b"\xff\xfe"),
        (report(gateway.user), b""),
        (report(gateway.user), bytes(262_145)),  # more than the limit
        (f"{prefix}/no-mac/measurement/8100", b"{}"),
        (f"{prefix}/{D}/of-a-later-version/8100", b"{}"),
    ]
    for packet_id, (topic, payload) in enumerate(messages, 1):
        client.send(Publish(topic, payload, 1, packet_id=packet_id))
        assert await client.expect(Puback) == Puback(packet_id)
    assert await client.receive_until_pong() == []


# --- End of connections ---


@pytest.mark.rule("broker-4", "broker-19")
async def test_a_released_gateway_is_disconnected_and_refused(service: ServiceProcess) -> None:
    mac = "02005e300003"
    gateway = service.claim(mac)
    viewer = service.add_user("eva", Role.VIEWER)
    subscriber = await service.connect_subscriber(viewer, f"mt/gateway/{mac}/device/#")
    client = await service.connect(gateway, will=Will(report(mac), b"will", 1))
    client.send(Publish(report(mac), b"before", 1, packet_id=1))
    assert await client.expect(Puback) == Puback(1)
    assert (await subscriber.expect(Publish)).payload == b"before"
    service.release(mac)
    assert await client.receive_until_closed() == []
    _, connack = await service.try_connect(gateway)
    assert connack.code == 4
    assert await subscriber.receive_until_pong() == [], "its will must not be published"


@pytest.mark.rule("broker-10", "auth-29")
async def test_a_password_that_another_process_resets_takes_effect_at_once(service: ServiceProcess) -> None:
    user = service.add_user("ada", Role.VIEWER)
    client, other = await service.connect(user), await service.connect(service.claim("02005e300004"))
    arguments = ["users", "reset-password", "--json", "--data", str(service.data), "ada"]
    with Program(*arguments) as program:
        reset = json.loads(program.read_line())
        assert program.wait_for_exit()[0] == 0
    assert await client.receive_until_closed() == []
    assert await other.receive_until_pong() == []
    _, connack = await service.try_connect(user)
    assert connack.code == 4
    await service.connect(user._replace(password=reset["password"]))


@pytest.mark.rule("broker-11", "broker-15")
async def test_revoking_an_api_key_closes_its_connections(service: ServiceProcess) -> None:
    issued = service.call("POST", "/api/v1/api-keys", {"name": "billing", "role": "viewer"})
    key_account = service.add_user("any", Role.VIEWER)._replace(user="apikey", password=issued["key"])
    client = await service.connect_subscriber(key_account, REPORTS)
    service.call("DELETE", f"/api/v1/api-keys/{issued['id']}")
    assert await client.receive_until_closed() == []
    _, connack = await service.try_connect(key_account)
    assert connack.code == 4


async def test_a_stopping_service_publishes_wills_and_keeps_queued_messages(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as service:
        gateway, viewer = service.claim("02005e300005"), service.add_user("eva", Role.VIEWER)
        subscriber = await service.connect_subscriber(viewer, REPORTS, clean=False)
        client = await service.connect(gateway, will=Will(report(gateway.user), b"will", 1))
        assert service.stop() == (0, "")
        assert await client.receive_until_closed() == []
        assert [
            each for each in await subscriber.receive_until_closed() if not isinstance(each, Publish)
        ] == []
        service.start()
        subscriber, connack = await service.try_connect(viewer, clean=False)
        assert connack == Connack(session_present=True)
        assert (await subscriber.expect(Publish)).payload == b"will"
        assert await subscriber.receive_until_pong() == []
        await service.disconnect_all()


async def test_the_log_contains_no_credentials_and_payloads(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt"), "--log-level", "debug") as service:
        issued = service.call("POST", "/api/v1/api-keys", {"name": "billing", "role": "operator"})
        gateway, user = service.claim("02005e300007"), service.add_user("otto", Role.OPERATOR)
        key_account = user._replace(user="apikey", password=issued["key"])
        for each in (gateway, user, key_account):
            await service.connect(each)
            _, connack = await service.try_connect(each._replace(password=f"not-{each.password}"))
            assert connack.code == 4
        requester = await service.connect(
            user, will=Will(_build_request_topic(gateway.user), b"hidden-will", 1)
        )
        requester.send(Publish(_build_request_topic(gateway.user), b'{"key":"hidden-key"}', 1, packet_id=1))
        assert await requester.expect(Puback) == Puback(1)
        requester.send(Publish("mt/forbidden", b"hidden-payload"))
        assert await requester.receive_until_closed() == []
        await service.disconnect_all()
        code, errors = service.stop()
    assert code == 0
    assert "refused: wrong user name or password" in errors
    assert "PUBLISH to a forbidden topic" in errors
    for secret in (PASSWORD, gateway.password, issued["key"], "hidden-"):
        assert secret not in errors


def _build_request_topic(gateway: str) -> str:
    return f"mt/gateway/{gateway}/request/{D}/read/8000"
