"""The log explains to an operator why a client was refused, and no client can fill it."""

from __future__ import annotations

import logging

import pytest

from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import SUBACK_FAILURE, Connack, ConnectReturnCode, Suback, Subscribe, Will
from tests.mqtt.broker.running_broker import REPORTS, G, RunningBroker, connect, request

pytestmark = pytest.mark.anyio

ELSEWHERE = "mt/gateway/02005e000002/device/x"
VALID_CONNECT = encode_packet(connect("viewer"))
LEVEL_POSITION = VALID_CONNECT.index(b"MQTT") + 4
"""Position of the protocol level in a CONNECT."""


def take_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings so far, and clear them."""
    found = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    caplog.clear()
    return found


@pytest.mark.rule("broker-27")
async def test_a_refused_connect_is_logged_with_its_reason(
    server: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    cases = {
        VALID_CONNECT[:LEVEL_POSITION]
        + b"\x05"
        + VALID_CONNECT[LEVEL_POSITION + 1 :]: "MQTT 5 is not supported, use MQTT 3.1.1",
        encode_packet(
            connect("viewer", password=b"guess")
        ): "wrong password (client id 'viewer', user 'viewer')",
        encode_packet(connect(G, will=Will(ELSEWHERE, b"", 1))): (
            f"the account may not publish its will message to '{ELSEWHERE}' (client id '{G}', user '{G}')"
        ),
        encode_packet(connect(G, client_id="x\ny")): (
            f"the client id of a gateway must be its MAC (client id 'x\\ny', user '{G}')"
        ),
    }
    found = {}
    for packet, reason in cases.items():
        client = await server.raw_client()
        client.send(packet)
        assert (await client.expect(Connack)).code != ConnectReturnCode.ACCEPTED
        assert await client.receive_until_closed() == []
        found[reason] = take_warnings(caplog)
    assert found == {reason: [f"connection from 127.0.0.1 refused: {reason}"] for reason in cases.values()}
    assert server.broker.connect_handler.refused_count == len(cases)


@pytest.mark.rule("broker-27")
async def test_refused_connects_do_not_fill_the_log(
    server: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    for client_id in ["same"] * 30 + [f"client-{number}" for number in range(30)]:
        client = await server.raw_client()
        client.send(connect("viewer", client_id=client_id, password=b"guess"))
        assert (await client.expect(Connack)).code != ConnectReturnCode.ACCEPTED
    found = take_warnings(caplog)
    assert len([line for line in found if "'same'" in line]) == 1
    assert len(found) == 10
    assert "guess" not in "".join(found)


@pytest.mark.rule("broker-29")
@pytest.mark.parametrize("limits", [BrokerLimits(failed_connections=1)])
async def test_a_connection_refused_because_of_the_database_is_no_failed_login(
    server: RunningBroker,
) -> None:
    for _ in range(10):
        server.authenticator.failures.append(DatabaseUnavailable("gone"))
        client = await server.raw_client()
        client.send(connect("viewer"))
        assert (await client.expect(Connack)).code == ConnectReturnCode.SERVER_UNAVAILABLE
    await server.client("viewer")


@pytest.mark.rule("broker-28")
async def test_a_refused_filter_is_logged_with_the_filters_the_account_may_use(
    server: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    viewer, gateway = await server.client("viewer", client_id="listen"), await server.gateway()
    viewer.send(Subscribe(1, (("mt/#", 1), (REPORTS, 1), (request(), 1))))
    assert (await viewer.expect(Suback)).codes == (SUBACK_FAILURE, 1, SUBACK_FAILURE)
    gateway.send(Subscribe(1, ((REPORTS, 1),)))
    assert (await gateway.expect(Suback)).codes == (SUBACK_FAILURE,)
    assert take_warnings(caplog) == [
        (
            f"client 'listen' of user viewer at 127.0.0.1 may not subscribe to 'mt/#', '{request()}'; this"
            " account may subscribe to mt/gateway/+/device/#, mt/gateway/+/response/#, meshfleet/alarms/+, or"
            " to parts of them"
        ),
        (
            f"client '{G}' of gateway {G} at 127.0.0.1 may not subscribe to '{REPORTS}'; this account may"
            f" subscribe to mt/gateway/{G}/#, mt/gateways/#, meshtech/diagnostics/{G}/#, or to parts of them"
        ),
    ]
    for packet_id in range(2, 30):
        viewer.send(Subscribe(packet_id, (("#", 1),)))
        await viewer.expect(Suback)
    assert len(take_warnings(caplog)) == 4  # five in a minute
