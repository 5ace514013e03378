"""Authentication, trust and secrecy, against a real broker with real certificates."""

from __future__ import annotations

import asyncio
import json
import subprocess
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from meshfleet import tls
from meshfleet.errors.mqtt import (
    BrokerUnreachable,
    ConnectionRefused,
    MqttError,
    SubscriptionRefused,
    UntrustedBroker,
    UnusableCertificate,
)
from meshfleet.mqtt.client import BrokerAddress, MqttClient, MqttOptions
from tests.eventually import RETRY_TIMEOUTS, eventually_async
from tests.external_tools import MOSQUITTO_PASSWD, MOSQUITTO_RULES, require
from tests.mqtt.client.proxy import (
    FAST_RECONNECT,
    TIMEOUT,
    Proxy,
    receive_messages,
    receive_messages_until,
    to_address,
    unique_name,
)
from tests.row_tables import each_row
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from ssl import SSLContext

pytestmark = pytest.mark.anyio

USER, PASSWORD = "käthe-the-reader", "p@ss/wörd:hush"


class Certificates:
    """Certificate authority and the certificates that it signed, as files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self.authority = directory / "authority.pem"
        self._authority.cert_pem.write_to_path(str(self.authority))

    def issue(
        self, *names: str, not_before: datetime | None = None, not_after: datetime | None = None
    ) -> Path:
        """Issue a certificate and return the file with it and its key."""
        issued = self._authority.issue_cert(*names, not_before=not_before, not_after=not_after)
        file = self._directory / f"{unique_name('certificate')}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(str(file))
        return file

    def trust(self, certificate: Path | None = None) -> SSLContext:
        return tls.create_tls_context(authorities=self.authority, certificate=certificate)


def served(certificate: Path) -> tuple[str, str]:
    return f"certfile {certificate}", f"keyfile {certificate}"


def secured(broker: Mosquitto, host: str = "127.0.0.1") -> BrokerAddress:
    return BrokerAddress(host=host, port=broker.address.port, tls=True)


def address_with_credentials(broker: Mosquitto, user: str | None, password: str | None) -> BrokerAddress:
    return BrokerAddress(host=broker.address.host, port=broker.address.port, user=user, password=password)


def set_password(file: Path, user: str, password: str) -> None:
    subprocess.run(
        [require(MOSQUITTO_PASSWD), "-c", "-b", file, user, password], check=True, capture_output=True
    )


async def check_client(client: MqttClient) -> None:
    """Check that a client can publish and receive."""
    topic = unique_name("topic")
    await client.subscribe(topic)
    await client.publish(topic, topic.encode())
    await receive_messages_until(client, topic.encode())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """Run a broker with a valid certificate for two names."""
    certificate = certificates.issue("127.0.0.1", "localhost")
    with Mosquitto(tmp_path_factory.mktemp("secure"), *served(certificate)) as broker:
        yield broker


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    file = tmp_path / "passwords"
    set_password(file, USER, PASSWORD)
    return file


@pytest.fixture
def password_broker(tmp_path: Path, passwords: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path, f"password_file {passwords}", "allow_anonymous false") as broker:
        yield broker


async def test_the_right_password_is_accepted(password_broker: Mosquitto) -> None:
    async with MqttClient(
        address_with_credentials(password_broker, USER, PASSWORD), unique_name("c"), clean=True
    ) as client:
        await check_client(client)


@each_row(
    ("user", "password"),
    [(USER, "wrong-password"), (USER, None), ("unknown-user", PASSWORD), (USER, ""), (None, None)],
)
async def test_a_refusal_names_the_reason_and_no_credentials(
    password_broker: Mosquitto, user: str | None, password: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    caplog.clear()  # records of the previous row
    address = address_with_credentials(password_broker, user, password)
    with pytest.raises(ConnectionRefused, match="not authorized") as refusal:
        await MqttClient(address, unique_name("c"), clean=True).__aenter__()
    assert refusal.value.return_code == 5
    texts = f"{refusal.value} {refusal.value!r} {address} {address!r} {caplog.text}"
    assert str(to_address(password_broker.address)) in str(refusal.value)
    for secret in (user, password):
        assert not secret or secret not in texts


async def test_a_changed_password_is_logged_without_credentials(
    password_broker: Mosquitto, passwords: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with MqttClient(
        address_with_credentials(password_broker, USER, PASSWORD), unique_name("c"), options=FAST_RECONNECT
    ) as client:
        set_password(passwords, USER, "another")
        await asyncio.to_thread(password_broker.stop)
        await asyncio.to_thread(password_broker.start)
        await eventually_async(lambda: "refuses the connection" in str(client.connection_error))
        set_password(passwords, USER, PASSWORD)
        await asyncio.to_thread(password_broker.stop)
        await asyncio.to_thread(password_broker.start)
        async with asyncio.timeout(TIMEOUT):
            await check_client(client)
    assert "refuses the connection: not authorized" in caplog.text
    assert USER not in caplog.text
    assert PASSWORD not in caplog.text


@pytest.fixture
def rules(tmp_path: Path) -> tuple[str, str]:
    """Configure that every client may subscribe below open/."""
    access = {
        "publishClientSend": True,
        "publishClientReceive": True,
        "subscribe": False,
        "unsubscribe": True,
    }
    allowed = {"acltype": "subscribePattern", "topic": "open/#", "priority": 1, "allow": True}
    rules = {
        "defaultACLAccess": access,
        "clients": [],
        "groups": [{"groupname": "all", "roles": [{"rolename": "reader"}]}],
        "roles": [{"rolename": "reader", "acls": [allowed]}],
        "anonymousGroup": "all",
    }
    file = tmp_path / "rules.json"
    file.write_text(json.dumps(rules))
    return f"plugin {require(MOSQUITTO_RULES)}", f"plugin_opt_config_file {file}"


async def test_a_forbidden_subscription_is_refused_and_the_others_are_granted(
    tmp_path: Path, rules: tuple[str, str]
) -> None:
    with Mosquitto(tmp_path, *rules) as broker:
        async with MqttClient(to_address(broker.address), unique_name("c"), clean=True) as client:
            with pytest.raises(SubscriptionRefused) as refusal:
                await client.subscribe("open/a", "secret/#", "open/+/b")
            assert refusal.value.filters == ("secret/#",)
            await client.publish("secret/a", b"unheard")
            await client.publish("open/a", b"heard")
            assert [message.payload for message in await receive_messages(client, 1)] == [b"heard"]


async def test_a_lower_qos_than_requested_is_a_refusal(tmp_path: Path) -> None:
    with Mosquitto(tmp_path, "max_qos 0") as broker:
        async with MqttClient(to_address(broker.address), unique_name("c"), clean=True) as client:
            with pytest.raises(SubscriptionRefused):
                await client.subscribe("a")
            await client.subscribe("a", qos=0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_valid_certificate_is_trusted(
    secure: Mosquitto, certificates: Certificates, host: str
) -> None:
    options = MqttOptions(tls=certificates.trust())
    async with MqttClient(secured(secure, host), unique_name("c"), clean=True, options=options) as client:
        await check_client(client)


async def test_nothing_is_readable_on_the_network(secure: Mosquitto, certificates: Certificates) -> None:
    async with Proxy(secure.address) as proxy:
        address = BrokerAddress(
            host="127.0.0.1", port=proxy.address.port, tls=True, user=USER, password=PASSWORD
        )
        async with MqttClient(
            address, unique_name("c"), clean=True, options=MqttOptions(tls=certificates.trust())
        ) as client:
            await client.publish("a", b"secret" * 1000)
        up = bytes(proxy.connections[0].up)
    assert len(up) > 6000
    assert b"secret" not in up
    assert PASSWORD.encode() not in up


async def test_a_client_over_tls_reconnects_after_a_cut(
    secure: Mosquitto, certificates: Certificates
) -> None:
    options = MqttOptions(tls=certificates.trust(), backoff=FAST_RECONNECT.backoff)
    async with Proxy(secure.address) as proxy:
        address = BrokerAddress(host="127.0.0.1", port=proxy.address.port, tls=True)
        async with MqttClient(address, unique_name("c"), options=options) as client:
            await check_client(client)
            await proxy.cut()
            await check_client(client)


async def test_a_tls_handshake_without_a_response_times_out(
    secure: Mosquitto, certificates: Certificates
) -> None:
    trust = certificates.trust()
    async with Proxy(secure.address) as proxy:
        address = BrokerAddress(host="127.0.0.1", port=proxy.address.port, tls=True)
        for limit in RETRY_TIMEOUTS:
            proxy.stall(up=False)
            with pytest.raises(BrokerUnreachable, match=f"^{address} did not respond within"):
                await MqttClient(
                    address, unique_name("c"), options=MqttOptions(tls=trust, timeout=limit)
                ).__aenter__()
            proxy.resume()
            await proxy.until(lambda: all(each.over for each in proxy.connections))
            if any(each.up for each in proxy.connections):
                break
        assert any(each.up for each in proxy.connections)


@pytest.mark.parametrize("authority", ["another", "the system"])
async def test_an_unknown_authority_is_not_trusted(secure: Mosquitto, tmp_path: Path, authority: str) -> None:
    options = MqttOptions(tls=Certificates(tmp_path).trust()) if authority == "another" else MqttOptions()
    with pytest.raises(UntrustedBroker, match=f"^{secured(secure)}: .*issuer"):
        await MqttClient(secured(secure), unique_name("c"), options=options).__aenter__()


async def test_a_certificate_for_another_host_is_not_trusted(
    certificates: Certificates, tmp_path: Path
) -> None:
    with Mosquitto(tmp_path, *served(certificates.issue("broker.example"))) as broker:
        for host, words in (("127.0.0.1", "IP address mismatch"), ("localhost", "Hostname mismatch")):
            with pytest.raises(UntrustedBroker, match=words):
                await MqttClient(
                    secured(broker, host), unique_name("c"), options=MqttOptions(tls=certificates.trust())
                ).__aenter__()


async def test_an_expired_certificate_is_not_trusted(certificates: Certificates, tmp_path: Path) -> None:
    not_before, not_after = datetime(2020, 1, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC)
    expired = certificates.issue("127.0.0.1", not_before=not_before, not_after=not_after)
    with Mosquitto(tmp_path, *served(expired)) as broker, pytest.raises(UntrustedBroker, match="expired"):
        await MqttClient(
            secured(broker), unique_name("c"), options=MqttOptions(tls=certificates.trust())
        ).__aenter__()


async def test_a_broker_may_require_a_client_certificate(certificates: Certificates, tmp_path: Path) -> None:
    strict = (f"cafile {certificates.authority}", "require_certificate true")
    with Mosquitto(tmp_path, *served(certificates.issue("127.0.0.1")), *strict) as broker:
        ours = MqttOptions(tls=certificates.trust(certificates.issue("reader@fleet.example")))
        async with MqttClient(secured(broker), unique_name("c"), clean=True, options=ours) as client:
            await check_client(client)
        with pytest.raises(BrokerUnreachable, match="certificate required"):
            await MqttClient(
                secured(broker), unique_name("c"), options=MqttOptions(tls=certificates.trust())
            ).__aenter__()


async def test_tls_and_plain_mqtt_do_not_connect_to_each_other(
    secure: Mosquitto, certificates: Certificates, tmp_path: Path
) -> None:
    plain = to_address(secure.address)
    with pytest.raises(MqttError, match=f"^{plain}.*(reset|closed|respond|protocol)"):
        await MqttClient(plain, unique_name("c")).__aenter__()
    with Mosquitto(tmp_path) as broker:
        address, options = secured(broker), MqttOptions(tls=certificates.trust())
        with pytest.raises(MqttError, match=f"^{address}.*(reset|closed|respond|TLS)"):
            await MqttClient(address, unique_name("c"), options=options).__aenter__()


def test_files_without_a_certificate_are_named(certificates: Certificates, tmp_path: Path) -> None:
    nothing, text = tmp_path / "nothing.pem", tmp_path / "text.pem"
    text.write_text("not a certificate")
    one, another = certificates.issue("a.example"), certificates.issue("b.example")
    with pytest.raises(UnusableCertificate, match=f"^{nothing}: No such file"):
        tls.create_tls_context(authorities=nothing)
    with pytest.raises(UnusableCertificate, match=f"^{text}: .+"):
        tls.create_tls_context(authorities=text)
    with pytest.raises(UnusableCertificate, match=f"^{certificates.authority}, {text}: .+"):
        tls.create_tls_context(authorities=certificates.authority, certificate=text)
    with pytest.raises(UnusableCertificate, match=f"^{certificates.authority}: .+"):
        tls.create_tls_context(certificate=certificates.authority)  # no key in it
    with pytest.raises(UnusableCertificate, match=f"^{one}, {another}: .*(?i:mismatch)"):
        tls.create_tls_context(certificate=one, key=another)


def test_an_encrypted_key_is_refused_without_a_prompt(certificates: Certificates, tmp_path: Path) -> None:
    certificate, locked = certificates.issue("a.example"), tmp_path / "locked.pem"
    key = serialization.load_pem_private_key(certificate.read_bytes(), None)
    lock = serialization.BestAvailableEncryption(b"hush")
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    locked.write_bytes(key.private_bytes(pem, pkcs8, lock))
    with pytest.raises(UnusableCertificate, match=f"^{certificate}, {locked}: .*password"):
        tls.create_tls_context(certificate=certificate, key=locked)
