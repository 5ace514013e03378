"""Connection: client id, subscriptions, topic prefix, and requests to all gateways."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.emulator.conformance.gateway_process import run_gateway
from tests.emulator.conformance.payload_shapes import FROM_GATEWAY, ExpectedRoute, check_response
from tests.emulator.conformance.recorder import Recorder
from tests.emulator.conformance.site import CLIP, TRACKER, UNKNOWN_DEVICE, small_site
from tests.eventually import eventually
from tests.row_tables import each_row

if TYPE_CHECKING:
    from pathlib import Path

    from tests.emulator.conformance.gateway_process import GatewayProcess
    from tests.emulator.conformance.variants import Variant
    from tests.servers import ServerAddress

PREFIX = "site/7"


def find_subscriptions(log: Path, client: str) -> set[str]:
    """Return the subscriptions of a client with their QoS, from the log of the broker."""
    return set(re.findall(rf"^\d+: {client} (\d \S+)$", log.read_text(), re.MULTILINE))


@pytest.mark.rule("gateway-2", "gateway-9")
def test_everything_is_published_with_qos_1(gateway: GatewayProcess) -> None:
    gateway.request(TRACKER, "read/8000")
    gateway.report(TRACKER, "heartbeat")
    messages = gateway.recorder.messages_since()
    assert {message.qos for message in messages} == {1}
    assert {message.parts[0] for message in messages} == {"device", "response"}


@pytest.mark.rule("gateway-3")
def test_nothing_is_retained(gateway: GatewayProcess, broker: ServerAddress) -> None:
    gateway.request(TRACKER, "read/8000")
    gateway.report(TRACKER, "heartbeat")
    with Recorder(broker, f"mt/gateway/{gateway.mac}/#") as late_recorder:
        # Retained messages would arrive first.
        late_recorder.wait_for_many(3, lambda message: not message.retain)
        assert not [message for message in late_recorder.messages_since() if message.retain]


@pytest.mark.rule("gateway-1", "gateway-4")
def test_the_client_id_is_the_mac_and_the_protocol_mqtt_3_1_1(
    gateway: GatewayProcess, broker_log: Path
) -> None:
    connected = rf"New client connected from [0-9.]+:\d+ as {gateway.mac} \(p2, "
    eventually(lambda: re.search(connected, broker_log.read_text()))


@pytest.mark.rule("gateway-8")
def test_a_gateway_subscribes_to_its_own_requests_and_to_broadcasts(
    gateway: GatewayProcess, broker_log: Path
) -> None:
    own_requests = f"1 mt/gateway/{gateway.mac}/request/#"
    image_answers = f"1 meshtech/diagnostics/{gateway.mac}/server-response/firmware"
    eventually(
        lambda: (
            find_subscriptions(broker_log, gateway.mac) - {image_answers} == {own_requests, "1 mt/gateways/#"}
        )
    )


@pytest.mark.rule("gateway-16", "topic-10", "topic-11")
@each_row("suffix", ["apiversion", "read/8000", "read-decoded/model-number"])
def test_each_gateway_responds_for_itself_to_a_request_to_all_gateways(
    gateway: GatewayProcess, silent_gateway: GatewayProcess, suffix: str
) -> None:
    marks = {other: other.recorder.mark for other in (gateway, silent_gateway)}
    payload = json.dumps({"id": "to all"}).encode()
    gateway.recorder.publish(f"mt/gateways/request/ffffffffffff/{suffix}", payload)
    for other, mark in marks.items():
        topic = f"mt/gateway/{other.mac}/response/{other.mac}/{suffix}"
        message = other.recorder.wait_for(lambda message, topic=topic: message.topic == topic, after=mark)  # type: ignore[misc]
        response = dict(message.payload)
        assert response.pop("id") == "to all"
        check_response(other, response, FROM_GATEWAY, since="2.0.1" if suffix == "apiversion" else "2.0.0")


@pytest.mark.rule("gateway-15", "topic-10")
def test_only_gateways_that_know_the_device_respond_to_a_request_to_all(gateway: GatewayProcess) -> None:
    mark = gateway.recorder.mark
    gateway.recorder.publish(f"mt/gateways/request/{UNKNOWN_DEVICE}/read/8000", b"{}")
    gateway.recorder.publish(f"mt/gateways/request/{CLIP}/read/8000", b"{}")
    topic = f"mt/gateway/{gateway.mac}/response/{CLIP}/read/8000"
    message = gateway.recorder.wait_for(lambda message: message.topic == topic, after=mark)
    rest = check_response(gateway, message.payload, ExpectedRoute(1, extender_route=(gateway.mac,)))
    assert rest == {"value": "000f"}
    assert gateway.responses(UNKNOWN_DEVICE, "read/8000", after=mark) == []


@pytest.mark.rule("gateway-12", "topic-7")
def test_every_topic_has_the_prefix_in_both_directions(broker: ServerAddress, variant: Variant) -> None:
    with (
        Recorder(broker, "mt/gateway/+/device/#", "mt/gateway/+/response/#") as unprefixed,
        run_gateway(broker, variant, small_site, prefix=PREFIX) as prefixed,
    ):
        report = prefixed.recorder.wait_for(lambda message: message.is_report(TRACKER, "heartbeat"))
        assert report.topic == f"{PREFIX}/mt/gateway/{prefixed.mac}/device/{TRACKER}/heartbeat"
        check_response(prefixed, prefixed.request(TRACKER, "read/8000"), ExpectedRoute(0, route=(TRACKER,)))
        mark = prefixed.recorder.mark
        prefixed.recorder.publish(f"{PREFIX}/mt/gateways/request/ffffffffffff/apiversion", b"")
        topic = f"{PREFIX}/mt/gateway/{prefixed.mac}/response/{prefixed.mac}/apiversion"
        prefixed.recorder.wait_for(lambda message: message.topic == topic, after=mark)
    assert not [message for message in unprefixed.messages_since() if prefixed.mac in message.topic]


@pytest.mark.rule("gateway-12", "topic-8")
def test_a_gateway_without_a_prefix_ignores_requests_with_one(gateway: GatewayProcess) -> None:
    mark = gateway.recorder.mark
    gateway.recorder.publish(f"{PREFIX}/mt/gateway/{gateway.mac}/request/{TRACKER}/read/8001", b"{}")
    gateway.wait_until_idle(TRACKER)
    assert gateway.responses(TRACKER, "read/8001", after=mark) == []


@pytest.mark.rule("gateway-13")
def test_a_gateway_with_disable_subscribe_reports_but_does_not_respond(
    broker: ServerAddress, broker_log: Path, variant: Variant
) -> None:
    with run_gateway(broker, variant, small_site, "--disable-subscribe") as unsubscribed:
        unsubscribed.send(TRACKER, "read/8000", b"{}")
        unsubscribed.recorder.publish("mt/gateways/request/ffffffffffff/apiversion", b"{}")
        unsubscribed.recorder.wait_for_many(5, lambda message: message.is_report(TRACKER, "heartbeat"))
        assert not [
            message for message in unsubscribed.recorder.messages_since() if message.parts[0] == "response"
        ]
        assert find_subscriptions(broker_log, unsubscribed.mac) == set()
