"""Requests that are repeated after errors, and those that are not."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest
import trustme

from meshfleet.client import Fleet
from meshfleet.client.rest.http_messages import HttpRequest, HttpResponse
from meshfleet.client.rest.retries import (
    MAX_TRIES,
    compute_backoff,
    decide_retry_after_error,
    decide_retry_after_loss,
)
from meshfleet.errors import (
    DatabaseUnavailable,
    GatewayOffline,
    GatewayTimeout,
    ServiceRefused,
    ServiceUnreachable,
    TooManyAttempts,
    Unavailable,
)
from meshfleet.errors.protocol import MalformedAddress
from tests.client.rest.scripted_server import DROP, build_problem, build_response, scripted_server
from tests.eventually import RETRY_TIMEOUTS
from tests.row_tables import each_row
from tests.servers import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

ME = build_response(200, {"username": "me", "role": "viewer", "kind": "user"})
KEY = "mfk_not-a-key"
GET = HttpRequest(method="GET", path="/", is_repeatable=True)
PUT = HttpRequest(method="PUT", path="/")
DEVICE = "c0ffee000001"
LABEL = build_response(200, {"label": "x", "deviceCount": 0})
RESPONSE = build_response(
    200,
    {
        "id": "1",
        "time": "2026-01-01T00:00:00.000Z",
        "status": 0,
        "value": "00",
        "gateway": "02005e000001",
        "choice": {"reason": "asked", "candidates": []},
    },
)


@each_row(
    "failure",
    [
        DROP,
        build_response(502),
        build_response(503, Retry_After="0"),
        build_response(504, b"<html>", Content_Type="text/html"),
        build_problem(503, "database-unavailable"),
        build_problem(429, "too-many-attempts", Retry_After="0"),
    ],
)
async def test_reads_are_repeated_after_transient_failures(failure: bytes) -> None:
    async with scripted_server(failure, failure, ME) as server, Fleet(server.url, token=KEY) as fleet:
        assert (await fleet.me()).username == "me"
        assert len(server.requests) == 3


async def test_the_number_of_attempts_is_limited() -> None:
    async with (
        scripted_server(build_problem(503, "database-unavailable")) as server,
        Fleet(server.url, token=KEY) as fleet,
    ):
        with pytest.raises(DatabaseUnavailable):
            await fleet.me()
        assert len(server.requests) == MAX_TRIES


async def test_the_number_of_lost_connections_is_limited() -> None:
    async with scripted_server(DROP) as server, Fleet(server.url, token=KEY) as fleet:
        with pytest.raises(ServiceUnreachable, match="was lost") as lost:
            await fleet.me()
        assert (len(server.requests), lost.value.was_sent) == (MAX_TRIES, True)


@each_row("failure", [DROP, build_problem(503, "unavailable"), build_problem(429, "too-many-attempts")])
async def test_a_change_that_may_have_arrived_is_not_repeated(failure: bytes) -> None:
    async with scripted_server(failure, LABEL) as server, Fleet(server.url, token=KEY) as fleet:
        with pytest.raises((ServiceUnreachable, Unavailable, TooManyAttempts)):
            await fleet.labels.add("x")
        assert len(server.requests) == 1
        assert (await fleet.labels.add("x")).label == "x"


async def test_a_request_to_a_device_is_repeated_with_the_same_idempotency_key() -> None:
    async with scripted_server(DROP, DROP, RESPONSE) as server, Fleet(server.url, token=KEY) as fleet:
        assert (await fleet.requests.write(DEVICE, "8000", "00")).status == 0
        assert (await fleet.requests.write(DEVICE, "8000", "00")).status == 0
        keys = [each.headers["idempotency-key"] for each in server.requests]
        assert keys[0] == keys[1] == keys[2] != keys[3]
        assert len({each.body for each in server.requests}) == 1


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (build_problem(503, "gateway-offline"), GatewayOffline),
        (build_problem(504, "gateway-timeout"), GatewayTimeout),
    ],
)
async def test_a_missing_response_of_a_gateway_is_not_retried(problem: bytes, kind: type[Exception]) -> None:
    async with scripted_server(problem) as server, Fleet(server.url, token=KEY) as fleet:
        with pytest.raises(kind):
            await fleet.requests.read(DEVICE, "8000")
        assert len(server.requests) == 1


async def test_a_long_retry_after_is_not_waited_for() -> None:
    busy = build_problem(429, "too-many-attempts", Retry_After="3600")
    async with scripted_server(busy) as server, Fleet(server.url, token=KEY) as fleet:
        with pytest.raises(TooManyAttempts) as raised:
            await fleet.me()
        assert (raised.value.retry_after, len(server.requests)) == (3600, 1)


async def test_an_address_without_a_server_is_unreachable() -> None:
    async with Fleet(f"http://127.0.0.1:{free_port()}", token=KEY) as fleet:
        with pytest.raises(ServiceUnreachable, match="cannot be reached") as lost:
            await fleet.labels.add("x")
        assert not lost.value.was_sent


async def test_a_timeout_is_not_retried() -> None:
    incomplete = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"
    request_count = 0
    for limit in RETRY_TIMEOUTS:
        async with (
            scripted_server(incomplete) as server,
            Fleet(server.url, token=KEY, timeout=limit) as fleet,
        ):
            with pytest.raises(ServiceUnreachable, match="in time"):
                await fleet.me()
            request_count = len(server.requests)
        if request_count:
            break
    assert request_count == 1


@each_row(
    ("reply", "message"),
    [
        (build_response(302, Location="http://127.0.0.1/elsewhere"), "redirects"),
        (build_response(200, b"<html>", Content_Type="text/html"), "is not a Meshfleet service"),
        (build_response(200, {"username": 3}), "no valid"),
        (build_response(404, b"<html>"), "HTTP status 404"),
        (build_response(200, b"\x1f\x8b", Content_Encoding="gzip"), "encoding"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8000000\r\n" + b"x" * (65 << 20),
            "more than",
        ),
    ],
)
async def test_responses_of_other_servers_are_refused(reply: bytes, message: str) -> None:
    async with scripted_server(reply) as server, Fleet(server.url, token=KEY) as fleet:
        with pytest.raises(ServiceRefused, match=message):
            await fleet.me()
        assert len(server.requests) == 1


async def test_the_certificate_is_verified_against_the_given_authority(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with scripted_server(ME, tls=context) as server:
        async with Fleet(server.url, token=KEY, tls_ca=ca_file) as fleet:
            assert (await fleet.me()).username == "me"
        async with Fleet(server.url, token=KEY) as fleet:
            with pytest.raises(ServiceRefused, match="certificate"):
                await fleet.me()


@each_row(
    "url", ["", "fleet", "ftp://h", "https://", "https://me:pw@h", "https://h/?x", "https://h#", "http://a b"]
)
def test_an_invalid_url_is_refused_without_quoting_its_password(url: str) -> None:
    with pytest.raises(MalformedAddress) as raised:
        Fleet(url, token=KEY)
    assert "pw" not in str(raised.value)


async def test_a_service_may_be_below_a_path() -> None:
    async with scripted_server(ME) as server, Fleet(f"{server.url}/some/where/", token=KEY) as fleet:
        await fleet.me()
        assert [each.path for each in server.requests] == ["/some/where/api/v1/auth/me"]


def test_a_change_is_repeated_only_if_it_was_not_sent() -> None:
    sent, not_sent = ServiceUnreachable("", was_sent=True), ServiceUnreachable("")
    assert decide_retry_after_loss(PUT, sent, 1) is None
    assert decide_retry_after_loss(PUT, not_sent, 1) is not None
    assert decide_retry_after_loss(GET, sent, 1) is not None
    assert decide_retry_after_loss(GET, sent, MAX_TRIES) is None


def test_the_backoff_grows_to_a_limit_and_obeys_retry_after() -> None:
    assert all(
        0 <= compute_backoff(tries) <= 0.25 * 2 ** (tries - 1) for tries in range(1, 6) for _ in range(100)
    )
    assert all(compute_backoff(100) <= 8 for _ in range(100))
    busy = HttpResponse(status=503, body=b"", retry_after=5)
    assert all((decide_retry_after_error(GET, busy, Unavailable(""), 1) or 0) >= 5 for _ in range(100))
    assert decide_retry_after_error(PUT, busy, Unavailable(""), 1) is None
