"""Gateways are claimed at a service over REST; a real server plays the service."""

from __future__ import annotations

import json
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from meshfleet.emulator.runtime.claims import claim_gateways
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
MANY = [Mac(f"d0cf5e{number:06x}") for number in range(45)]
HIDDEN = "correct-horse"
PROBLEM = {"type": "about:blank", "title": "No", "status": 418, "detail": "the tea is cold"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Service:
    """A service with one admin. What is in `first` is answered before it does its work, each once."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.first: dict[str, list[bytes]] = {}
        """By the last part of the path."""
        self.passwords: dict[str, str] = {}
        self.broker: dict[str, Any] = {"host": "broker.example", "port": 8883, "tls": True}
        self.logins = 0

    async def reply(self, asked: HttpRequest, writer: StreamWriter) -> None:
        waiting = self.first.get(asked.target.rsplit("/", 1)[-1], [])
        writer.write(waiting.pop(0) if waiting else self._work(asked))

    def _work(self, asked: HttpRequest) -> bytes:
        assert asked.method == "POST"
        path = asked.target.removeprefix(f"{self.prefix}/api/v1/")
        if path == "auth/login":
            return self._log_in(json.loads(asked.body))
        if asked.headers.get("authorization") != f"Bearer token-{self.logins}":
            return build_json_response(401, {"title": "Unauthorized"}, WWW_Authenticate="Bearer")
        if path == "gateways":
            return self._claim(json.loads(asked.body))
        mac = path.removeprefix("gateways/").removesuffix("/credentials")
        assert path == f"gateways/{mac}/credentials"
        assert not asked.body
        return self._credentials(200, mac)

    def _log_in(self, body: Any) -> bytes:
        if body != {"username": "ada", "password": HIDDEN}:
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
        known = {"mac": mac, "deviceId": f"bmac-{mac}", "username": mac, "password": self.passwords[mac]}
        return build_json_response(status, {**known, "broker": self.broker, "new": 1})


@asynccontextmanager
async def running(service: Service) -> AsyncIterator[ScriptedHttpServer]:
    async with ScriptedHttpServer(service.reply) as web:
        yield web


async def claimed(
    url: str, gateways: Sequence[Mac] = (ONE,), *, password: str = HIDDEN, **settings: Any
) -> list[tuple[Mac, BrokerAddress]]:
    async with httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES, trust_env=False, timeout=5) as http:
        return await claim_gateways(
            url, user="ada", password=password, gateways=gateways, http=http, **settings
        )


def address(mac: Mac, password: str) -> BrokerAddress:
    return BrokerAddress(host="broker.example", port=8883, tls=True, user=mac, password=password)


async def test_claimed_gateways_know_where_and_as_whom_to_connect() -> None:
    async with running(Service()) as web:
        found = await claimed(web.url, [TWO, ONE])
    assert found == [(TWO, address(TWO, "secret-02")), (ONE, address(ONE, "secret-01"))]


async def test_one_login_serves_all_gateways() -> None:
    service, done = Service(), list[Mac]()
    async with running(service) as web:
        found = await claimed(web.url, MANY, concurrency=4, on_claimed=done.append)
    assert [mac for mac, _ in found] == MANY
    assert sorted(done) == MANY
    assert service.logins == 1
    assert len(web.requests) == 1 + len(MANY)


async def test_no_gateways_are_claimed_by_a_login_alone() -> None:
    async with running(Service()) as web:
        assert await claimed(web.url, []) == []


@each_row("end", ["", "/"])
async def test_a_path_may_stand_in_front_of_the_interface(end: str) -> None:
    async with running(Service("/fleet/one")) as web:
        [(mac, _)] = await claimed(f"{web.url}/fleet/one{end}")
    assert mac == ONE
    assert {asked.target for asked in web.requests} == {
        "/fleet/one/api/v1/auth/login",
        "/fleet/one/api/v1/gateways",
    }


@each_row(
    ("broker", "written"),
    [
        ({"host": "10.0.0.1", "port": 1883, "tls": False}, "mqtt://10.0.0.1:1883"),
        ({"host": "::1", "port": 8884, "tls": True}, "mqtts://[::1]:8884"),
    ],
)
async def test_the_broker_is_the_one_of_the_answer(broker: dict[str, Any], written: str) -> None:
    service = Service()
    service.broker = broker
    async with running(service) as web:
        [(_, found)] = await claimed(web.url)
    assert str(found) == written


async def test_a_gateway_that_is_claimed_already_gets_a_new_password() -> None:
    service = Service()
    service.passwords[ONE] = "old"
    async with running(service) as web:
        found = await claimed(web.url, [ONE, TWO])
    assert found == [(ONE, address(ONE, "old-01")), (TWO, address(TWO, "secret-02"))]


async def test_a_gateway_that_is_named_twice_keeps_its_password() -> None:
    service = Service()
    async with running(service) as web:
        [(_, found)] = await claimed(web.url, [ONE, ONE])
    assert found == address(ONE, service.passwords[ONE])
    assert [asked.target for asked in web.requests] == ["/api/v1/auth/login", "/api/v1/gateways"]


async def test_an_expired_token_is_replaced_by_one_login_for_all() -> None:
    service = Service()

    def expire(_: Mac) -> None:
        if len(service.passwords) > 20 and service.logins == 1:
            service.logins = 2  # from now on the service wants token-2, which nobody has

    async with running(service) as web:
        found = await claimed(web.url, MANY, concurrency=8, on_claimed=expire)
    assert [mac for mac, _ in found] == MANY
    assert [asked.target for asked in web.requests].count("/api/v1/auth/login") == 2


async def test_who_is_not_let_in_with_a_fresh_token_gives_up() -> None:
    service = Service()
    service.first["gateways"] = [build_json_response(401, {"detail": "no"})] * 2
    async with running(service) as web:
        with pytest.raises(ServiceRefused, match="HTTP status 401: no"):
            await claimed(web.url)
    assert service.logins == 2


@each_row("where", ["login", "gateways", "credentials"])
async def test_a_busy_service_is_asked_again(where: str) -> None:
    service = Service()
    service.passwords[ONE] = "old"
    service.first[where] = [build_json_response(429, PROBLEM, Retry_After="0")] * 3
    async with running(service) as web:
        [(_, found)] = await claimed(web.url)
    assert found == address(ONE, "old-01")
    assert service.first[where] == []


async def test_nobody_waits_for_an_hour() -> None:
    service = Service()
    service.first["login"] = [build_json_response(429, PROBLEM, Retry_After="3600")]
    async with running(service) as web:
        with pytest.raises(ServiceRefused, match="wait 3600 s"):
            await claimed(web.url)


async def test_a_service_that_is_always_busy_is_left_alone() -> None:
    service = Service()
    service.first["login"] = [build_json_response(429, PROBLEM, Retry_After="0")] * 100
    async with running(service) as web:
        with pytest.raises(ServiceRefused, match="again and again"):
            await claimed(web.url)
    assert service.first["login"]


async def test_a_wrong_password_is_said_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    mistyped = "hunter22"
    async with running(Service()) as web:
        with pytest.raises(ServiceRefused, match="does not accept this user name and password") as refused:
            await claimed(web.url, password=mistyped)
    assert mistyped not in f"{refused.value!r} {refused.value.__cause__} {caplog.text}"


REFUSALS = [
    ("gateways", build_json_response(403, PROBLEM), "only admins .* 'ada' is none"),
    ("gateways", build_json_response(500, PROBLEM), "HTTP status 500: the tea is cold"),
    ("gateways", build_json_response(503, {"title": "Later"}), "HTTP status 503: Later"),
    ("gateways", build_json_response(400, {"detail": "give me token-1"}), "HTTP status 400$"),
    ("gateways", build_json_response(400, {"title": " " * 190 + HIDDEN}), "HTTP status 400$"),
    (
        "gateways",
        build_json_response(400, {"detail": "a\nb\x1b[0m" + "c" * 1000}),
        r"HTTP status 400: ab\[0mc{100,200}$",
    ),
    ("gateways", build_response(502, b"<html>bad gateway</html>"), "HTTP status 502$"),
    ("gateways", build_response(404), "HTTP status 404$"),
    ("gateways", build_response(201, b"<html>welcome</html>"), "not a Meshfleet service"),
    ("gateways", build_json_response(201, {"mac": ONE, "password": HIDDEN}), "no proper deviceId"),
    ("gateways", build_json_response(201, [HIDDEN]), "not a Meshfleet service"),
    ("gateways", b"no HTTP at all\r\n\r\n", "no proper HTTP"),
    ("gateways", build_response(201, b"{", Content_Length="100"), "no proper HTTP"),
    ("gateways", build_response(201, b" " * 100_000), "too long"),
    ("login", build_response(200, b"<html>welcome</html>"), "not a Meshfleet service"),
    ("login", build_response(200, b"\xff"), "not a Meshfleet service"),
    (
        "login",
        build_json_response(200, {"status": "FAILED", "authToken": HIDDEN, "sessionId": None}),
        "no proper status",
    ),
    ("login", build_response(404), "not a Meshfleet service: it has no login"),
    ("login", build_response(405), "not a Meshfleet service: it has no login"),
    ("login", build_response(308, Location="https://elsewhere.example/"), "redirects"),
    ("login", build_response(302, Location="http://["), "redirects|no proper HTTP"),
]


@each_row(("where", "given", "words"), REFUSALS)
async def test_a_refusal_tells_the_operator_why_and_no_secret(where: str, given: bytes, words: str) -> None:
    service = Service()
    service.first[where] = [given]
    async with running(service) as web:
        with pytest.raises(ServiceRefused, match=words) as refused:
            await claimed(web.url)
    assert str(refused.value).startswith(web.url)
    for hidden in (HIDDEN, "token-1"):
        assert hidden not in f"{refused.value!r} {refused.value.__cause__!r}"


async def test_the_first_refusal_of_many_ends_the_others() -> None:
    service = Service()
    service.first["gateways"] = [build_json_response(201, {})]
    async with running(service) as web:
        with pytest.raises(ServiceRefused):
            await claimed(web.url, MANY, concurrency=2)
    assert len(service.passwords) < len(MANY)


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
async def test_a_broker_that_cannot_be_one_is_refused(broker: dict[str, Any]) -> None:
    service = Service()
    service.broker = broker
    async with running(service) as web:
        with pytest.raises(ServiceRefused, match=r"broker|proper tls"):
            await claimed(web.url)


async def test_an_answer_for_another_gateway_is_refused() -> None:
    other = {"mac": TWO, "deviceId": f"bmac-{TWO}", "username": TWO, "password": HIDDEN}
    service = Service()
    service.first["gateways"] = [build_json_response(201, {**other, "broker": service.broker})]
    async with running(service) as web:
        with pytest.raises(ServiceRefused, match="answers for another"):
            await claimed(web.url)


async def test_a_service_that_is_not_there_cannot_be_reached() -> None:
    with pytest.raises(ServiceRefused, match="cannot be reached"):
        await claimed(f"http://127.0.0.1:{free_port()}")


async def test_a_silent_service_does_not_answer_in_time() -> None:
    async def say_nothing(asked: HttpRequest, _: StreamWriter) -> None:
        await asked.reader.read()

    async with (
        ScriptedHttpServer(say_nothing) as web,
        httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES, trust_env=False, timeout=0.05) as http,
    ):
        with pytest.raises(ServiceRefused, match="in time"):
            await claim_gateways(web.url, user="ada", password=HIDDEN, gateways=[ONE], http=http)


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
async def test_an_address_that_cannot_be_a_service_is_refused_unshown(url: str) -> None:
    with pytest.raises(MalformedAddress, match=r"^service: ") as refused:
        await claimed(url)
    assert "hunter22" not in str(refused.value)
