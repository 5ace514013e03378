"""What is asked again, and what is not."""

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
KEY = "mfk_of-nobody"
GET = HttpRequest(method="GET", path="/", is_repeatable=True)
PUT = HttpRequest(method="PUT", path="/")
DEVICE = "c0ffee000001"
LABEL = build_response(200, {"label": "x", "deviceCount": 0})
ANSWER = build_response(
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
    "trouble",
    [
        DROP,
        build_response(502),
        build_response(503, Retry_After="0"),
        build_response(504, b"<html>", Content_Type="text/html"),
        build_problem(503, "database-unavailable"),
        build_problem(429, "too-many-attempts", Retry_After="0"),
    ],
)
async def test_reading_is_tried_again_after_what_may_pass(trouble: bytes) -> None:
    async with scripted_server(trouble, trouble, ME) as server, Fleet(server.url, token=KEY) as fleet:
        assert (await fleet.me()).username == "me"
        assert len(server.requests) == 3


async def test_tries_have_an_end() -> None:
    async with (
        scripted_server(build_problem(503, "database-unavailable")) as server,
        Fleet(server.url, token=KEY) as fleet,
    ):
        with pytest.raises(DatabaseUnavailable):
            await fleet.me()
        assert len(server.requests) == MAX_TRIES


async def test_lost_connections_have_an_end() -> None:
    async with scripted_server(DROP) as server, Fleet(server.url, token=KEY) as fleet:
        with pytest.raises(ServiceUnreachable, match="was lost") as lost:
            await fleet.me()
        assert (len(server.requests), lost.value.was_sent) == (MAX_TRIES, True)


@each_row("trouble", [DROP, build_problem(503, "unavailable"), build_problem(429, "too-many-attempts")])
async def test_a_change_that_may_have_arrived_is_not_said_again(trouble: bytes) -> None:
    async with scripted_server(trouble, LABEL) as server, Fleet(server.url, token=KEY) as fleet:
        with pytest.raises((ServiceUnreachable, Unavailable, TooManyAttempts)):
            await fleet.labels.add("x")
        assert len(server.requests) == 1
        assert (await fleet.labels.add("x")).label == "x"


async def test_a_request_to_a_device_is_said_again_with_the_same_key() -> None:
    async with scripted_server(DROP, DROP, ANSWER) as server, Fleet(server.url, token=KEY) as fleet:
        assert (await fleet.requests.write(DEVICE, "8000", "00")).status == 0
        assert (await fleet.requests.write(DEVICE, "8000", "00")).status == 0
        keys = [each.headers["idempotency-key"] for each in server.requests]
        assert keys[0] == keys[1] == keys[2] != keys[3]
        assert len({each.body for each in server.requests}) == 1


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (build_problem(503, "gateway-offline"), GatewayOffline),
        (build_problem(504, "gateway-timeout"), GatewayTimeout),
    ],
)
async def test_that_a_gateway_does_not_answer_is_an_answer(told: bytes, kind: type[Exception]) -> None:
    async with scripted_server(told) as server, Fleet(server.url, token=KEY) as fleet:
        with pytest.raises(kind):
            await fleet.requests.read(DEVICE, "8000")
        assert len(server.requests) == 1


async def test_who_asks_to_wait_for_long_is_not_waited_for() -> None:
    busy = build_problem(429, "too-many-attempts", Retry_After="3600")
    async with scripted_server(busy) as server, Fleet(server.url, token=KEY) as fleet:
        with pytest.raises(TooManyAttempts) as refused:
            await fleet.me()
        assert (refused.value.retry_after, len(server.requests)) == (3600, 1)


async def test_where_nobody_listens_is_no_service() -> None:
    async with Fleet(f"http://127.0.0.1:{free_port()}", token=KEY) as fleet:
        with pytest.raises(ServiceUnreachable, match="cannot be reached") as lost:
            await fleet.labels.add("x")
        assert not lost.value.was_sent


async def test_time_that_ran_out_is_not_spent_again() -> None:
    silent = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"
    asked = 0
    for limit in RETRY_TIMEOUTS:
        async with scripted_server(silent) as server, Fleet(server.url, token=KEY, timeout=limit) as fleet:
            with pytest.raises(ServiceUnreachable, match="in time"):
                await fleet.me()
            asked = len(server.requests)
        if asked:
            break
    assert asked == 1


@each_row(
    ("reply", "words"),
    [
        (build_response(302, Location="http://127.0.0.1/elsewhere"), "redirects"),
        (build_response(200, b"<html>", Content_Type="text/html"), "is not a Meshfleet service"),
        (build_response(200, {"username": 3}), "no proper"),
        (build_response(404, b"<html>"), "HTTP status 404"),
        (build_response(200, b"\x1f\x8b", Content_Encoding="gzip"), "encoding"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8000000\r\n" + b"x" * (65 << 20),
            "more than",
        ),
    ],
)
async def test_what_is_no_service_is_told_so(reply: bytes, words: str) -> None:
    async with scripted_server(reply) as server, Fleet(server.url, token=KEY) as fleet:
        with pytest.raises(ServiceRefused, match=words):
            await fleet.me()
        assert len(server.requests) == 1


async def test_a_certificate_is_checked_and_may_be_of_an_own_authority(tmp_path: Path) -> None:
    authority = trustme.CA()
    own = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(own))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with scripted_server(ME, tls=context) as server:
        async with Fleet(server.url, token=KEY, tls_ca=own) as fleet:
            assert (await fleet.me()).username == "me"
        async with Fleet(server.url, token=KEY) as fleet:
            with pytest.raises(ServiceRefused, match="certificate"):
                await fleet.me()


@each_row(
    "url", ["", "fleet", "ftp://h", "https://", "https://me:pw@h", "https://h/?x", "https://h#", "http://a b"]
)
def test_an_address_that_cannot_be_one_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(MalformedAddress) as refused:
        Fleet(url, token=KEY)
    assert "pw" not in str(refused.value)


async def test_a_service_may_have_a_path_in_front_of_its_own() -> None:
    async with scripted_server(ME) as server, Fleet(f"{server.url}/some/where/", token=KEY) as fleet:
        await fleet.me()
        assert [each.path for each in server.requests] == ["/some/where/api/v1/auth/me"]


def test_a_change_is_said_again_only_if_it_never_left() -> None:
    left, stayed = ServiceUnreachable("", was_sent=True), ServiceUnreachable("")
    assert decide_retry_after_loss(PUT, left, 1) is None
    assert decide_retry_after_loss(PUT, stayed, 1) is not None
    assert decide_retry_after_loss(GET, left, 1) is not None
    assert decide_retry_after_loss(GET, left, MAX_TRIES) is None


def test_pauses_grow_up_to_a_limit_and_are_at_least_as_long_as_was_asked() -> None:
    assert all(
        0 <= compute_backoff(tries) <= 0.25 * 2 ** (tries - 1) for tries in range(1, 6) for _ in range(100)
    )
    assert all(compute_backoff(100) <= 8 for _ in range(100))
    busy = HttpResponse(status=503, body=b"", retry_after=5)
    assert all((decide_retry_after_error(GET, busy, Unavailable(""), 1) or 0) >= 5 for _ in range(100))
    assert decide_retry_after_error(PUT, busy, Unavailable(""), 1) is None
