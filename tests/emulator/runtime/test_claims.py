"""Claims of gateways at a service over REST, with a scripted HTTP server as the service."""

from __future__ import annotations

import json
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from meshfleet.emulator.runtime.claims import ClaimedGateway, claim_gateways
from meshfleet.errors import ServiceRefused
from meshfleet.errors.protocol import MalformedAddress
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.protocol.ids import Mac
from tests.emulator.runtime.http_server import (
    HttpRequest,
    ScriptedHttpServer,
    build_json_response,
    build_response,
)
from tests.row_tables import each_row
from tests.servers import NO_TRUSTED_AUTHORITIES, free_port

if TYPE_CHECKING:
    from asyncio import StreamWriter
    from collections.abc import AsyncIterator, Sequence

pytestmark = pytest.mark.anyio

ONE, TWO = Mac("d0cf5e000001"), Mac("d0cf5e000002")
MANY_GATEWAYS = [Mac(f"d0cf5e{number:06x}") for number in range(45)]
PASSWORD = "correct-horse"  # noqa: S105 # not a real password
PROBLEM = {"type": "about:blank", "title": "No", "status": 418, "detail": "the tea is cold"}


class Service:
    """Service with one admin. Responses in `queued` are sent first, each once."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.queued: dict[str, list[bytes]] = {}
        """Queued responses by the last part of the path."""
        self.passwords: dict[str, str] = {}
        self.broker: dict[str, Any] = {"host": "broker.example", "port": 8883, "tls": True}
        self.logins = 0

    async def reply(self, request: HttpRequest, writer: StreamWriter) -> None:
        queued_responses = self.queued.get(request.target.rsplit("/", 1)[-1], [])
        writer.write(queued_responses.pop(0) if queued_responses else self._handle(request))

    def _handle(self, request: HttpRequest) -> bytes:
        assert request.method == "POST"
        path = request.target.removeprefix(f"{self.prefix}/api/v1/")
        if path == "auth/login":
            return self._log_in(json.loads(request.body))
        if request.headers.get("authorization") != f"Bearer token-{self.logins}":
            return build_json_response(401, {"title": "Unauthorized"}, WWW_Authenticate="Bearer")
        if path == "gateways":
            return self._claim(json.loads(request.body))
        mac = path.removeprefix("gateways/").removesuffix("/credentials")
        assert path == f"gateways/{mac}/credentials"
        assert not request.body
        return self._credentials(200, mac)

    def _log_in(self, body: Any) -> bytes:
        if body != {"username": "ada", "password": PASSWORD}:
            return build_json_response(
                401, {"title": "Unauthorized", "detail": f"{body['password']} is wrong"}
            )
        self.logins += 1
        return build_json_response(
            200, {"status": "SUCCESS", "authToken": f"token-{self.logins}", "sessionId": None}
        )

    def _claim(self, body: Any) -> bytes:
        assert list(body) == ["mac"]
        if body["mac"] in self.passwords:
            return build_json_response(409, {"title": "Conflict", "detail": "claimed already"})
        return self._credentials(201, body["mac"])

    def _credentials(self, status: int, mac: str) -> bytes:
        self.passwords[mac] = f"{self.passwords.get(mac, 'secret')}-{mac[-2:]}"
        credentials = {
            "mac": mac,
            "deviceId": f"bmac-{mac}",
            "username": mac,
            "password": self.passwords[mac],
        }
        return build_json_response(status, {**credentials, "broker": self.broker, "new": 1})


@asynccontextmanager
async def run_service(service: Service) -> AsyncIterator[ScriptedHttpServer]:
    async with ScriptedHttpServer(service.reply) as web:
        yield web


async def claim(
    url: str, gateways: Sequence[Mac] = (ONE,), *, password: str = PASSWORD, **settings: Any
) -> list[ClaimedGateway]:
    async with httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES, trust_env=False, timeout=5) as http:
        return await claim_gateways(
            url, user="ada", password=password, gateways=gateways, http=http, **settings
        )


def build_address(mac: Mac, password: str) -> BrokerAddress:
    return BrokerAddress(host="broker.example", port=8883, tls=True, user=mac, password=password)


async def test_claimed_gateways_get_a_broker_address_and_credentials() -> None:
    async with run_service(Service()) as web:
        claims = await claim(web.url, [TWO, ONE])
    assert claims == [(TWO, build_address(TWO, "secret-02")), (ONE, build_address(ONE, "secret-01"))]


async def test_one_login_is_used_for_all_gateways() -> None:
    service, claimed_macs = Service(), list[Mac]()
    async with run_service(service) as web:
        claims = await claim(web.url, MANY_GATEWAYS, concurrency=4, on_claimed=claimed_macs.append)
    assert [mac for mac, _ in claims] == MANY_GATEWAYS
    assert sorted(claimed_macs) == MANY_GATEWAYS
    assert service.logins == 1
    assert len(web.requests) == 1 + len(MANY_GATEWAYS)


async def test_without_gateways_nothing_is_claimed() -> None:
    async with run_service(Service()) as web:
        assert await claim(web.url, []) == []


@each_row("suffix", ["", "/"])
async def test_the_service_url_may_have_a_path(suffix: str) -> None:
    async with run_service(Service("/fleet/one")) as web:
        [(mac, _)] = await claim(f"{web.url}/fleet/one{suffix}")
    assert mac == ONE
    assert {request.target for request in web.requests} == {
        "/fleet/one/api/v1/auth/login",
        "/fleet/one/api/v1/gateways",
    }


@each_row(
    ("broker", "expected"),
    [
        ({"host": "10.0.0.1", "port": 1883, "tls": False}, "mqtt://10.0.0.1:1883"),
        ({"host": "::1", "port": 8884, "tls": True}, "mqtts://[::1]:8884"),
    ],
)
async def test_the_broker_address_is_that_of_the_response(broker: dict[str, Any], expected: str) -> None:
    service = Service()
    service.broker = broker
    async with run_service(service) as web:
        [(_, address)] = await claim(web.url)
    assert str(address) == expected


async def test_a_gateway_that_is_claimed_already_gets_a_new_password() -> None:
    service = Service()
    service.passwords[ONE] = "old"
    async with run_service(service) as web:
        claims = await claim(web.url, [ONE, TWO])
    assert claims == [(ONE, build_address(ONE, "old-01")), (TWO, build_address(TWO, "secret-02"))]


async def test_a_gateway_that_is_given_twice_is_claimed_once() -> None:
    service = Service()
    async with run_service(service) as web:
        [(_, address)] = await claim(web.url, [ONE, ONE])
    assert address == build_address(ONE, service.passwords[ONE])
    assert [request.target for request in web.requests] == ["/api/v1/auth/login", "/api/v1/gateways"]


async def test_an_expired_token_is_replaced_by_a_single_login() -> None:
    service = Service()

    def expire(_: Mac) -> None:
        if len(service.passwords) > 20 and service.logins == 1:
            service.logins = 2  # from now on the service expects token-2, which no client has

    async with run_service(service) as web:
        claims = await claim(web.url, MANY_GATEWAYS, concurrency=8, on_claimed=expire)
    assert [mac for mac, _ in claims] == MANY_GATEWAYS
    assert [request.target for request in web.requests].count("/api/v1/auth/login") == 2


async def test_a_second_401_after_a_new_login_is_an_error() -> None:
    service = Service()
    service.queued["gateways"] = [build_json_response(401, {"detail": "no"})] * 2
    async with run_service(service) as web:
        with pytest.raises(ServiceRefused, match="HTTP status 401: no"):
            await claim(web.url)
    assert service.logins == 2


@each_row("endpoint", ["login", "gateways", "credentials"])
async def test_a_rate_limited_request_is_repeated(endpoint: str) -> None:
    service = Service()
    service.passwords[ONE] = "old"
    service.queued[endpoint] = [build_json_response(429, PROBLEM, Retry_After="0")] * 3
    async with run_service(service) as web:
        [(_, address)] = await claim(web.url)
    assert address == build_address(ONE, "old-01")
    assert service.queued[endpoint] == []


async def test_a_long_retry_after_is_an_error() -> None:
    service = Service()
    service.queued["login"] = [build_json_response(429, PROBLEM, Retry_After="3600")]
    async with run_service(service) as web:
        with pytest.raises(ServiceRefused, match="try again in 3600 s"):
            await claim(web.url)


async def test_a_service_that_always_limits_the_rate_is_an_error() -> None:
    service = Service()
    service.queued["login"] = [build_json_response(429, PROBLEM, Retry_After="0")] * 100
    async with run_service(service) as web:
        with pytest.raises(ServiceRefused, match="keeps limiting"):
            await claim(web.url)
    assert service.queued["login"]


async def test_a_wrong_password_is_reported_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    wrong_password = "hunter22"  # noqa: S105 # not a real password
    async with run_service(Service()) as web:
        with pytest.raises(ServiceRefused, match="does not accept this user name and password") as caught:
            await claim(web.url, password=wrong_password)
    assert wrong_password not in f"{caught.value!r} {caught.value.__cause__} {caplog.text}"


REJECTED_RESPONSES = [
    ("gateways", build_json_response(403, PROBLEM), "only admins .* 'ada' is not an admin"),
    ("gateways", build_json_response(500, PROBLEM), "HTTP status 500: the tea is cold"),
    ("gateways", build_json_response(503, {"title": "Later"}), "HTTP status 503: Later"),
    ("gateways", build_json_response(400, {"detail": "give me token-1"}), "HTTP status 400$"),
    ("gateways", build_json_response(400, {"title": " " * 190 + PASSWORD}), "HTTP status 400$"),
    (
        "gateways",
        build_json_response(400, {"detail": "a\nb\x1b[0m" + "c" * 1000}),
        r"HTTP status 400: ab\[0mc{100,200}$",
    ),
    ("gateways", build_response(502, b"<html>bad gateway</html>"), "HTTP status 502$"),
    ("gateways", build_response(404), "HTTP status 404$"),
    ("gateways", build_response(201, b"<html>welcome</html>"), "not a Meshfleet service"),
    ("gateways", build_json_response(201, {"mac": ONE, "password": PASSWORD}), "no valid deviceId"),
    ("gateways", build_json_response(201, [PASSWORD]), "not a Meshfleet service"),
    ("gateways", b"no HTTP at all\r\n\r\n", "not valid HTTP"),
    ("gateways", build_response(201, b"{", Content_Length="100"), "not valid HTTP"),
    ("gateways", build_response(201, b" " * 100_000), "too long"),
    ("login", build_response(200, b"<html>welcome</html>"), "not a Meshfleet service"),
    ("login", build_response(200, b"\xff"), "not a Meshfleet service"),
    (
        "login",
        build_json_response(200, {"status": "FAILED", "authToken": PASSWORD, "sessionId": None}),
        "no valid status",
    ),
    ("login", build_response(404), "not a Meshfleet service: it has no login"),
    ("login", build_response(405), "not a Meshfleet service: it has no login"),
    ("login", build_response(308, Location="https://elsewhere.example/"), "redirects"),
    ("login", build_response(302, Location="http://["), "redirects|not valid HTTP"),
]


@each_row(("endpoint", "response", "message"), REJECTED_RESPONSES)
async def test_an_error_has_the_reason_and_no_secret(endpoint: str, response: bytes, message: str) -> None:
    service = Service()
    service.queued[endpoint] = [response]
    async with run_service(service) as web:
        with pytest.raises(ServiceRefused, match=message) as caught:
            await claim(web.url)
    assert str(caught.value).startswith(web.url)
    for secret in (PASSWORD, "token-1"):
        assert secret not in f"{caught.value!r} {caught.value.__cause__!r}"


async def test_the_first_error_cancels_the_other_claims() -> None:
    service = Service()
    service.queued["gateways"] = [build_json_response(201, {})]
    async with run_service(service) as web:
        with pytest.raises(ServiceRefused):
            await claim(web.url, MANY_GATEWAYS, concurrency=2)
    assert len(service.passwords) < len(MANY_GATEWAYS)


@each_row(
    "broker",
    [
        {"host": "", "port": 1883, "tls": False},
        {"host": "a b", "port": 1883, "tls": False},
        {"host": "a/b", "port": 1883, "tls": False},
        {"host": "a@b", "port": 1883, "tls": False},
        {"host": "a", "port": 0, "tls": False},
        {"host": "a", "port": 65536, "tls": False},
        {"host": "a", "port": "1883", "tls": False},
        {"host": "a", "port": 1883},
    ],
)
async def test_an_invalid_broker_address_is_rejected(broker: dict[str, Any]) -> None:
    service = Service()
    service.broker = broker
    async with run_service(service) as web:
        with pytest.raises(ServiceRefused, match=r"broker|valid tls"):
            await claim(web.url)


async def test_a_claim_of_another_gateway_is_rejected() -> None:
    claim_of_other = {"mac": TWO, "deviceId": f"bmac-{TWO}", "username": TWO, "password": PASSWORD}
    service = Service()
    service.queued["gateways"] = [build_json_response(201, {**claim_of_other, "broker": service.broker})]
    async with run_service(service) as web:
        with pytest.raises(ServiceRefused, match="claim of another gateway"):
            await claim(web.url)


async def test_an_unreachable_service_is_an_error() -> None:
    with pytest.raises(ServiceRefused, match="cannot be reached"):
        await claim(f"http://127.0.0.1:{free_port()}")


async def test_a_service_that_does_not_respond_is_an_error() -> None:
    async def never_respond(request: HttpRequest, _: StreamWriter) -> None:
        await request.reader.read()

    async with ScriptedHttpServer(never_respond) as web:
        with pytest.raises(ServiceRefused, match="in time"):
            await claim(web.url, response_timeout=0.05)


async def test_a_slow_service_is_waited_for_longer_than_the_http_client_waits() -> None:
    async with (
        run_service(Service()) as web,
        httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES, trust_env=False, timeout=1e-6) as http,
    ):
        claims = await claim_gateways(web.url, user="ada", password=PASSWORD, gateways=[ONE], http=http)
    assert claims == [(ONE, build_address(ONE, "secret-01"))]


@each_row(
    "url",
    [
        "",
        "nonsense",
        "http://xn--/",
        "ftp://host",
        "mqtt://host",
        "http://",
        "http:///path",
        "http://host:port",
        "http://ada:hunter22@host",
        "http://host/?hunter22",
        "http://host/#hunter22",
        "http://host?",
        "http://ho st",
        "http://host\n",
    ],
)
async def test_an_invalid_service_url_is_rejected_and_not_shown(url: str) -> None:
    with pytest.raises(MalformedAddress, match=r"^service: ") as caught:
        await claim(url)
    assert "hunter22" not in str(caught.value)
