"""Who gets in, whom the link trusts, and what it never says: against a real broker with real certificates."""

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
    LinkError,
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
    """An authority, and what it has signed, as files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self.authority = folder / "authority.pem"
        self._authority.cert_pem.write_to_path(str(self.authority))

    def issue(
        self, *names: str, not_before: datetime | None = None, not_after: datetime | None = None
    ) -> Path:
        """A certificate and its key, in one file."""
        issued = self._authority.issue_cert(*names, not_before=not_before, not_after=not_after)
        file = self._folder / f"{unique_name('certificate')}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(str(file))
        return file

    def trust(self, certificate: Path | None = None) -> SSLContext:
        return tls.create_tls_context(authorities=self.authority, certificate=certificate)


def served(certificate: Path) -> tuple[str, str]:
    return f"certfile {certificate}", f"keyfile {certificate}"


def secured(broker: Mosquitto, host: str = "127.0.0.1") -> BrokerAddress:
    return BrokerAddress(host=host, port=broker.address.port, tls=True)


def identified(broker: Mosquitto, user: str | None, password: str | None) -> BrokerAddress:
    return BrokerAddress(host=broker.address.host, port=broker.address.port, user=user, password=password)


def set_password(file: Path, user: str, password: str) -> None:
    subprocess.run(
        [require(MOSQUITTO_PASSWD), "-c", "-b", file, user, password], check=True, capture_output=True
    )


async def talk(link: MqttClient) -> None:
    """Prove that a link works."""
    topic = unique_name("topic")
    await link.subscribe(topic)
    await link.publish(topic, topic.encode())
    await receive_messages_until(link, topic.encode())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """Shows a certificate that holds, for two names."""
    certificate = certificates.issue("127.0.0.1", "localhost")
    with Mosquitto(tmp_path_factory.mktemp("secure"), *served(certificate)) as broker:
        yield broker


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    file = tmp_path / "passwords"
    set_password(file, USER, PASSWORD)
    return file


@pytest.fixture
def guarded(tmp_path: Path, passwords: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path, f"password_file {passwords}", "allow_anonymous false") as broker:
        yield broker


async def test_the_right_password_opens(guarded: Mosquitto) -> None:
    async with MqttClient(identified(guarded, USER, PASSWORD), unique_name("c"), clean=True) as link:
        await talk(link)


@each_row(
    ("user", "password"),
    [(USER, "guess-of-a-thief"), (USER, None), ("stranger-at-door", PASSWORD), (USER, ""), (None, None)],
)
async def test_a_refusal_says_why_and_nothing_about_the_credentials(
    guarded: Mosquitto, user: str | None, password: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    caplog.clear()  # of the row before
    there = identified(guarded, user, password)
    with pytest.raises(ConnectionRefused, match="not authorized") as refusal:
        await MqttClient(there, unique_name("c"), clean=True).__aenter__()
    assert refusal.value.return_code == 5
    told = f"{refusal.value} {refusal.value!r} {there} {there!r} {caplog.text}"
    assert str(to_address(guarded.address)) in str(refusal.value)
    for secret in (user, password):
        assert not secret or secret not in told


async def test_a_password_that_changes_under_a_link_is_told_without_it(
    guarded: Mosquitto, passwords: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with MqttClient(
        identified(guarded, USER, PASSWORD), unique_name("c"), options=FAST_RECONNECT
    ) as link:
        set_password(passwords, USER, "another")
        await asyncio.to_thread(guarded.stop)
        await asyncio.to_thread(guarded.start)
        await eventually_async(lambda: "refuses the connection" in str(link.connection_error))
        set_password(passwords, USER, PASSWORD)
        await asyncio.to_thread(guarded.stop)
        await asyncio.to_thread(guarded.start)
        async with asyncio.timeout(TIMEOUT):
            await talk(link)
    assert "refuses the connection: not authorized" in caplog.text
    assert USER not in caplog.text
    assert PASSWORD not in caplog.text


@pytest.fixture
def rules(tmp_path: Path) -> tuple[str, str]:
    """Everybody may subscribe to what is below open/."""
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


async def test_a_subscription_that_is_not_allowed_is_refused_and_the_others_hold(
    tmp_path: Path, rules: tuple[str, str]
) -> None:
    with Mosquitto(tmp_path, *rules) as broker:
        async with MqttClient(to_address(broker.address), unique_name("c"), clean=True) as link:
            with pytest.raises(SubscriptionRefused) as refusal:
                await link.subscribe("open/a", "secret/#", "open/+/b")
            assert refusal.value.filters == ("secret/#",)
            await link.publish("secret/a", b"unheard")
            await link.publish("open/a", b"heard")
            assert [message.payload for message in await receive_messages(link, 1)] == [b"heard"]


async def test_a_lower_qos_than_asked_for_is_a_refusal(tmp_path: Path) -> None:
    with Mosquitto(tmp_path, "max_qos 0") as broker:
        async with MqttClient(to_address(broker.address), unique_name("c"), clean=True) as link:
            with pytest.raises(SubscriptionRefused):
                await link.subscribe("a")
            await link.subscribe("a", qos=0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_certificate_that_holds_is_trusted(
    secure: Mosquitto, certificates: Certificates, host: str
) -> None:
    options = MqttOptions(tls=certificates.trust())
    async with MqttClient(secured(secure, host), unique_name("c"), clean=True, options=options) as link:
        await talk(link)


async def test_nothing_is_readable_on_the_way(secure: Mosquitto, certificates: Certificates) -> None:
    async with Proxy(secure.address) as proxy:
        there = BrokerAddress(
            host="127.0.0.1", port=proxy.address.port, tls=True, user=USER, password=PASSWORD
        )
        async with MqttClient(
            there, unique_name("c"), clean=True, options=MqttOptions(tls=certificates.trust())
        ) as link:
            await link.publish("a", b"secret" * 1000)
        up = bytes(proxy.connections[0].up)
    assert len(up) > 6000
    assert b"secret" not in up
    assert PASSWORD.encode() not in up


async def test_a_link_over_tls_comes_back_after_a_cut(secure: Mosquitto, certificates: Certificates) -> None:
    options = MqttOptions(tls=certificates.trust(), backoff=FAST_RECONNECT.backoff)
    async with Proxy(secure.address) as proxy:
        there = BrokerAddress(host="127.0.0.1", port=proxy.address.port, tls=True)
        async with MqttClient(there, unique_name("c"), options=options) as link:
            await talk(link)
            await proxy.cut()
            await talk(link)


async def test_a_handshake_that_is_never_answered_is_given_up(
    secure: Mosquitto, certificates: Certificates
) -> None:
    trust = certificates.trust()
    async with Proxy(secure.address) as proxy:
        there = BrokerAddress(host="127.0.0.1", port=proxy.address.port, tls=True)
        for limit in RETRY_TIMEOUTS:
            proxy.stall(up=False)
            with pytest.raises(BrokerUnreachable, match=f"^{there} did not respond within"):
                await MqttClient(
                    there, unique_name("c"), options=MqttOptions(tls=trust, timeout=limit)
                ).__aenter__()
            proxy.resume()
            await proxy.until(lambda: all(each.over for each in proxy.connections))
            if any(each.up for each in proxy.connections):
                break
        assert any(each.up for each in proxy.connections)


@pytest.mark.parametrize("authority", ["another", "the system's"])
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
    born, dead = datetime(2020, 1, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC)
    expired = certificates.issue("127.0.0.1", not_before=born, not_after=dead)
    with Mosquitto(tmp_path, *served(expired)) as broker, pytest.raises(UntrustedBroker, match="expired"):
        await MqttClient(
            secured(broker), unique_name("c"), options=MqttOptions(tls=certificates.trust())
        ).__aenter__()


async def test_a_broker_may_ask_for_our_certificate(certificates: Certificates, tmp_path: Path) -> None:
    strict = (f"cafile {certificates.authority}", "require_certificate true")
    with Mosquitto(tmp_path, *served(certificates.issue("127.0.0.1")), *strict) as broker:
        ours = MqttOptions(tls=certificates.trust(certificates.issue("reader@fleet.example")))
        async with MqttClient(secured(broker), unique_name("c"), clean=True, options=ours) as link:
            await talk(link)
        with pytest.raises(BrokerUnreachable, match="certificate required"):
            await MqttClient(
                secured(broker), unique_name("c"), options=MqttOptions(tls=certificates.trust())
            ).__aenter__()


async def test_tls_and_plain_do_not_meet_and_both_say_so(
    secure: Mosquitto, certificates: Certificates, tmp_path: Path
) -> None:
    plain = to_address(secure.address)
    with pytest.raises(LinkError, match=f"^{plain}.*(reset|closed|answer|protocol)"):
        await MqttClient(plain, unique_name("c")).__aenter__()
    with Mosquitto(tmp_path) as broker:
        there, options = secured(broker), MqttOptions(tls=certificates.trust())
        with pytest.raises(LinkError, match=f"^{there}.*(reset|closed|answer|TLS)"):
            await MqttClient(there, unique_name("c"), options=options).__aenter__()


def test_files_that_hold_no_certificate_are_named(certificates: Certificates, tmp_path: Path) -> None:
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


def test_a_key_behind_a_password_is_refused_without_asking_at_the_terminal(
    certificates: Certificates, tmp_path: Path
) -> None:
    certificate, locked = certificates.issue("a.example"), tmp_path / "locked.pem"
    key = serialization.load_pem_private_key(certificate.read_bytes(), None)
    lock = serialization.BestAvailableEncryption(b"hush")
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    locked.write_bytes(key.private_bytes(pem, pkcs8, lock))
    with pytest.raises(UnusableCertificate, match=f"^{certificate}, {locked}: .*password"):
        tls.create_tls_context(certificate=certificate, key=locked)
