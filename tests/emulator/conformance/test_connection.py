"""The connection: how the gateway logs in, what it listens to, and requests to all gateways."""

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


def subscriptions(log: Path, client: str) -> set[str]:
    """What a client has subscribed to, with which QoS, as the broker tells it."""
    return set(re.findall(rf"^\d+: {client} (\d \S+)$", log.read_text(), re.MULTILINE))


@pytest.mark.rule("gateway-2", "gateway-9")
def test_everything_is_published_with_qos_1(gateway: GatewayProcess) -> None:
    gateway.request(TRACKER, "read/8000")
    gateway.report(TRACKER, "heartbeat")
    heard = gateway.recorder.messages_since()
    assert {each.qos for each in heard} == {1}
    assert {each.parts[0] for each in heard} == {"device", "response"}


@pytest.mark.rule("gateway-3")
def test_nothing_is_retained(gateway: GatewayProcess, broker: ServerAddress) -> None:
    gateway.request(TRACKER, "read/8000")
    gateway.report(TRACKER, "heartbeat")
    with Recorder(broker, f"mt/gateway/{gateway.mac}/#") as latecomer:
        # What is retained would come first.
        latecomer.wait_for_many(3, lambda heard: not heard.retain)
        assert not [heard for heard in latecomer.messages_since() if heard.retain]


@pytest.mark.rule("gateway-1", "gateway-4")
def test_the_client_id_is_the_mac_and_the_protocol_mqtt_3_1_1(
    gateway: GatewayProcess, broker_log: Path
) -> None:
    connected = rf"New client connected from [0-9.]+:\d+ as {gateway.mac} \(p2, "
    eventually(lambda: re.search(connected, broker_log.read_text()))


@pytest.mark.rule("gateway-8")
def test_it_listens_to_its_own_requests_and_to_those_to_all(
    gateway: GatewayProcess, broker_log: Path
) -> None:
    own = f"1 mt/gateway/{gateway.mac}/request/#"
    images = f"1 meshtech/diagnostics/{gateway.mac}/server-response/firmware"
    eventually(lambda: subscriptions(broker_log, gateway.mac) - {images} == {own, "1 mt/gateways/#"})


@pytest.mark.rule("gateway-16", "topic-10", "topic-11")
@each_row("suffix", ["apiversion", "read/8000", "read-decoded/model-number"])
def test_a_request_to_all_gateways_is_answered_by_each_for_itself(
    gateway: GatewayProcess, unheeded: GatewayProcess, suffix: str
) -> None:
    marks = {each: each.recorder.mark for each in (gateway, unheeded)}
    payload = json.dumps({"id": "to all"}).encode()
    gateway.recorder.publish(f"mt/gateways/request/ffffffffffff/{suffix}", payload)
    for each, mark in marks.items():
        topic = f"mt/gateway/{each.mac}/response/{each.mac}/{suffix}"
        found = each.recorder.wait_for(lambda heard, topic=topic: heard.topic == topic, after=mark)  # type: ignore[misc]
        response = dict(found.payload)
        assert response.pop("id") == "to all"
        check_response(each, response, FROM_GATEWAY, since="2.0.1" if suffix == "apiversion" else "2.0.0")


@pytest.mark.rule("gateway-15", "topic-10")
def test_a_request_to_all_gateways_is_answered_by_those_who_know_the_device(gateway: GatewayProcess) -> None:
    mark = gateway.recorder.mark
    gateway.recorder.publish(f"mt/gateways/request/{UNKNOWN_DEVICE}/read/8000", b"{}")
    gateway.recorder.publish(f"mt/gateways/request/{CLIP}/read/8000", b"{}")
    topic = f"mt/gateway/{gateway.mac}/response/{CLIP}/read/8000"
    found = gateway.recorder.wait_for(lambda heard: heard.topic == topic, after=mark)
    rest = check_response(gateway, found.payload, ExpectedRoute(1, extender_route=(gateway.mac,)))
    assert rest == {"value": "000f"}
    assert gateway.responses(UNKNOWN_DEVICE, "read/8000", after=mark) == []


@pytest.mark.rule("gateway-12", "topic-7")
def test_a_prefix_stands_before_every_topic_both_ways(broker: ServerAddress, variant: Variant) -> None:
    with (
        Recorder(broker, "mt/gateway/+/device/#", "mt/gateway/+/response/#") as elsewhere,
        run_gateway(broker, variant, small_site, prefix=PREFIX) as prefixed,
    ):
        report = prefixed.recorder.wait_for(lambda heard: heard.is_report(TRACKER, "heartbeat"))
        assert report.topic == f"{PREFIX}/mt/gateway/{prefixed.mac}/device/{TRACKER}/heartbeat"
        check_response(prefixed, prefixed.request(TRACKER, "read/8000"), ExpectedRoute(0, route=(TRACKER,)))
        mark = prefixed.recorder.mark
        prefixed.recorder.publish(f"{PREFIX}/mt/gateways/request/ffffffffffff/apiversion", b"")
        topic = f"{PREFIX}/mt/gateway/{prefixed.mac}/response/{prefixed.mac}/apiversion"
        prefixed.recorder.wait_for(lambda heard: heard.topic == topic, after=mark)
    assert not [heard for heard in elsewhere.messages_since() if prefixed.mac in heard.topic]


@pytest.mark.rule("gateway-12", "topic-8")
def test_without_a_prefix_requests_below_one_are_not_for_it(gateway: GatewayProcess) -> None:
    mark = gateway.recorder.mark
    gateway.recorder.publish(f"{PREFIX}/mt/gateway/{gateway.mac}/request/{TRACKER}/read/8001", b"{}")
    gateway.wait_until_idle(TRACKER)
    assert gateway.responses(TRACKER, "read/8001", after=mark) == []


@pytest.mark.rule("gateway-13")
def test_a_gateway_that_must_not_subscribe_reports_and_answers_nothing(
    broker: ServerAddress, broker_log: Path, variant: Variant
) -> None:
    with run_gateway(broker, variant, small_site, "--disable-subscribe") as deaf:
        deaf.send(TRACKER, "read/8000", b"{}")
        deaf.recorder.publish("mt/gateways/request/ffffffffffff/apiversion", b"{}")
        deaf.recorder.wait_for_many(5, lambda heard: heard.is_report(TRACKER, "heartbeat"))
        assert not [heard for heard in deaf.recorder.messages_since() if heard.parts[0] == "response"]
        assert subscriptions(broker_log, deaf.mac) == set()
