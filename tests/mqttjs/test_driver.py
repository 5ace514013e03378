"""mqtt.js and mosquitto work together through the driver, before it is used with our broker."""

from __future__ import annotations

import socket
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import pytest
import trustme

from tests.eventually import eventually
from tests.external_tools import MOSQUITTO_PASSWD, require
from tests.mqttjs import Failure, Message, MqttJs, Options, Will
from tests.servers import Mosquitto, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER, PASSWORD = "käthe", "p@ss/wörd"
PAYLOADS = [b"", bytes(range(256)) * 100]


class Broker(NamedTuple):
    """URLs of one broker with four listeners."""

    mqtt: str
    mqtts: str
    ws: str
    wss: str
    authority: str


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("mosquitto")
    authority = trustme.CA()
    certificate_file = directory / "broker.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate_file))
    mqtts, ws, wss = free_port(), free_port(), free_port()
    certificate = (f"certfile {certificate_file}", f"keyfile {certificate_file}")
    settings = (
        *(f"listener {mqtts} 127.0.0.1", *certificate),
        *(f"listener {ws} 127.0.0.1", "protocol websockets"),
        *(f"listener {wss} 127.0.0.1", "protocol websockets", *certificate),
    )
    with Mosquitto(directory, *settings) as mosquitto:
        for port in (mqtts, ws, wss):
            wait_for_listener(port)
        yield Broker(
            url(mosquitto),
            f"mqtts://127.0.0.1:{mqtts}",
            f"ws://127.0.0.1:{ws}/mqtt",
            f"wss://127.0.0.1:{wss}/mqtt",
            authority.cert_pem.bytes().decode(),
        )


@pytest.fixture
def client() -> Iterator[MqttJs]:
    with MqttJs() as client:
        yield client


@pytest.fixture
def other() -> Iterator[MqttJs]:
    with MqttJs() as client:
        yield client


def url(mosquitto: Mosquitto) -> str:
    return f"mqtt://127.0.0.1:{mosquitto.address.port}"


def wait_for_listener(port: int) -> None:
    """Wait for a listener: the first one of a broker may be ready before its others."""
    with closing(socket.socket()) as probe:
        eventually(lambda: probe.connect_ex(("127.0.0.1", port)) == 0)


def test_messages_are_exchanged_over_every_transport(broker: Broker) -> None:
    for transport in ("mqtt", "mqtts", "ws", "wss"):
        with MqttJs() as client:
            assert client.connect(getattr(broker, transport), Options(ca=broker.authority)) is False
            assert client.subscribe(f"{transport}/#", qos=1) == [1]
            for payload in PAYLOADS:
                client.publish(f"{transport}/Zürich", payload, qos=1)
                message = client.expect_message()
                assert message == Message(f"{transport}/Zürich", payload, qos=1, retain=False, dup=False)
            client.end()
            client.expect_close()


# --- Tests for changes of the driver or mqtt.js: none of them uses our code ---


@pytest.mark.part("variants")
@pytest.mark.parametrize("transport", ["mqtts", "wss"])
def test_a_broker_of_an_unknown_authority_is_not_trusted(
    broker: Broker, client: MqttJs, transport: str
) -> None:
    authority = trustme.CA().cert_pem.bytes().decode()
    with pytest.raises(Failure, match="certificate"):
        client.connect(getattr(broker, transport), Options(ca=authority))


@pytest.mark.part("variants")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_is_delivered_at_the_lower_of_both_qos(broker: Broker, client: MqttJs, qos: int) -> None:
    client.connect(broker.mqtt)
    assert client.subscribe(f"lower/{qos}", qos=qos) == [qos]
    for sent in (0, 1, 2):
        client.publish(f"lower/{qos}", b"%d" % sent, qos=sent)
        message = client.expect_message()
        assert (message.payload, message.qos) == (b"%d" % sent, min(qos, sent))


@pytest.mark.part("variants")
def test_no_message_is_delivered_after_an_unsubscribe(broker: Broker, client: MqttJs) -> None:
    client.connect(broker.mqtt)
    client.subscribe("left/a", "left/b")
    client.unsubscribe("left/a")
    client.publish("left/a", b"unheard")
    client.publish("left/b", b"heard")
    assert client.expect_message().payload == b"heard"


@pytest.mark.part("variants")
def test_a_retained_message_reaches_a_later_subscriber(broker: Broker, client: MqttJs, other: MqttJs) -> None:
    client.connect(broker.mqtt)
    client.publish("kept/a", b"old", qos=1, retain=True)
    other.connect(broker.mqtt)
    other.subscribe("kept/#")
    assert other.expect_message() == Message("kept/a", b"old", qos=0, retain=True, dup=False)
    client.publish("kept/a", b"new", qos=1, retain=True)
    assert other.expect_message() == Message("kept/a", b"new", qos=0, retain=False, dup=False)


@pytest.mark.part("variants")
def test_a_will_is_published_unless_the_client_sent_disconnect(broker: Broker, client: MqttJs) -> None:
    client.connect(broker.mqtt)
    client.subscribe("will/#", qos=1)
    for name, disconnect in (("ended", MqttJs.end), ("cut", MqttJs.drop), ("killed", lambda _: None)):
        with MqttJs() as leaving:
            leaving.connect(broker.mqtt, Options(will=Will(f"will/{name}", b"\x00\xff", qos=1)))
            disconnect(leaving)
    assert {client.expect_message().topic for _ in range(2)} == {"will/cut", "will/killed"}
    client.publish("will/last", b"", qos=1)
    assert client.expect_message().topic == "will/last"


@pytest.mark.part("variants")
def test_the_payload_of_a_will_is_unchanged(broker: Broker, client: MqttJs, other: MqttJs) -> None:
    client.connect(broker.mqtt)
    client.subscribe("whole", qos=2)
    other.connect(broker.mqtt, Options(will=Will("whole", bytes(range(256)), qos=2)))
    other.drop()
    assert client.expect_message() == Message("whole", bytes(range(256)), qos=2, retain=False, dup=False)


@pytest.mark.part("variants")
def test_a_session_queues_messages_for_an_absent_client(broker: Broker, client: MqttJs) -> None:
    options = Options(client_id="lasting", clean=False)
    with MqttJs() as first:
        assert first.connect(broker.mqtt, options) is False
        first.subscribe("away", qos=2)
        first.end()
    client.connect(broker.mqtt)
    for qos in (1, 2):
        client.publish("away", b"%d" % qos, qos=qos)
    with MqttJs() as second:
        assert second.connect(broker.mqtt, options) is True
        assert [second.expect_message().payload for _ in range(2)] == [b"1", b"2"]


@pytest.mark.part("variants")
def test_a_second_client_with_the_same_id_closes_the_first(
    broker: Broker, client: MqttJs, other: MqttJs
) -> None:
    options = Options(client_id="twin")
    client.connect(broker.mqtt, options)
    other.connect(broker.mqtt, options)
    client.expect_close()


@pytest.mark.part("variants")
def test_a_wrong_password_is_refused_with_the_code_of_the_broker(tmp_path: Path, client: MqttJs) -> None:
    file = tmp_path / "passwords"
    subprocess.run(
        [require(MOSQUITTO_PASSWD), "-c", "-b", file, USER, PASSWORD], check=True, capture_output=True
    )
    with Mosquitto(tmp_path, f"password_file {file}") as mosquitto:
        with MqttJs() as good:
            assert good.connect(url(mosquitto), Options(username=USER, password=PASSWORD)) is False
        with pytest.raises(Failure, match="Not authorized") as refused:
            client.connect(url(mosquitto), Options(username=USER, password=USER))
    assert refused.value.code == 5


@pytest.mark.part("variants")
def test_a_closed_port_is_reported_as_econnrefused(client: MqttJs) -> None:
    with pytest.raises(Failure) as refused:
        client.connect(f"mqtt://127.0.0.1:{free_port()}")
    assert refused.value.code == "ECONNREFUSED"


@pytest.mark.part("variants")
def test_a_message_published_without_a_broker_arrives_when_it_is_back(
    tmp_path: Path, client: MqttJs, other: MqttJs
) -> None:
    with Mosquitto(tmp_path) as mosquitto:
        client.connect(url(mosquitto), Options(reconnect_period=20))
        mosquitto.stop()
        client.expect_close()
        number = client.begin_publish("back", b"patient", qos=1, retain=True)
        mosquitto.start()
        assert client.expect_connect() is False
        client.wait_published(number)
        other.connect(url(mosquitto))
        other.subscribe("back")
        assert other.expect_message().payload == b"patient"


@pytest.mark.part("variants")
def test_waiting_for_a_message_times_out(broker: Broker, client: MqttJs) -> None:
    client.connect(broker.mqtt)
    with pytest.raises(TimeoutError):
        client.expect_message(within=0)
