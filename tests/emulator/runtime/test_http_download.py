"""Downloads from HTTP servers that behave correctly, and from servers that do not."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import httpx
import pytest

from meshfleet.emulator.runtime.http_download import download_image
from meshfleet.errors import FleetError
from meshfleet.errors.emulator import ImageBroken, ImageUnavailable
from tests.emulator.runtime.http_server import HttpRequest, ScriptedHttpServer, build_response
from tests.eventually import eventually_async
from tests.mqtt.client.scripted_broker import with_timeout
from tests.row_tables import each_row
from tests.servers import NO_TRUSTED_AUTHORITIES, free_port

if TYPE_CHECKING:
    from asyncio import StreamWriter
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

BODY = bytes(range(256)) * 40
MAX_BYTES = 20_000


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        verify=NO_TRUSTED_AUTHORITIES, trust_env=False, auth=("ours", "hunter22")
    ) as client:
        yield client


async def fetch(
    http: httpx.AsyncClient, uri: str, *, idle_timeout: float = 30, total_timeout: float = 30
) -> bytes:
    return await download_image(
        http, uri, max_bytes=MAX_BYTES, idle_timeout=idle_timeout, total_timeout=total_timeout
    )


async def test_a_body_is_downloaded_unchanged(http: httpx.AsyncClient) -> None:
    async with ScriptedHttpServer.serving({"/image?a=b%20c": build_response(200, BODY)}) as web:
        assert await fetch(http, f"{web.url}/image?a=b%20c") == BODY
    [request] = web.requests
    assert request.headers["accept-encoding"] == "identity"


async def test_a_body_without_a_length_ends_with_the_connection(http: httpx.AsyncClient) -> None:
    async with ScriptedHttpServer.serving({"/": b"HTTP/1.0 200 OK\r\n\r\n" + BODY}) as web:
        assert await fetch(http, web.url) == BODY


async def test_credentials_of_the_client_are_not_sent(http: httpx.AsyncClient) -> None:
    async with ScriptedHttpServer.serving({"/": build_response(200, BODY)}) as web:
        await fetch(http, web.url)
    [request] = web.requests
    assert "authorization" not in request.headers


async def test_credentials_of_the_url_are_sent_to_its_server(http: httpx.AsyncClient) -> None:
    async with ScriptedHttpServer.serving({"/": build_response(200, BODY)}) as web:
        await fetch(http, web.url.replace("//", "//a:b@"))
    [request] = web.requests
    assert request.headers["authorization"] == "Basic YTpi"


@each_row("status", [301, 302, 303, 307, 308])
async def test_three_redirects_are_followed(http: httpx.AsyncClient, status: int) -> None:
    async with ScriptedHttpServer.serving({"/last": build_response(200, BODY)}) as last_server:
        responses = {f"/{number}": build_response(status, Location=f"/{number + 1}") for number in range(2)}
        async with ScriptedHttpServer.serving(
            responses | {"/2": build_response(status, Location=f"{last_server.url}/last")}
        ) as first_server:
            assert await fetch(http, f"{first_server.url}/0") == BODY


async def test_a_fourth_redirect_is_not_followed(http: httpx.AsyncClient) -> None:
    async with ScriptedHttpServer.serving({"/": build_response(302, Location="/")}) as web:
        with pytest.raises(ImageUnavailable, match="redirects too often"):
            await fetch(http, web.url)
    assert len(web.requests) == 4


@each_row("target", ["file:///etc/passwd", "ftp://127.0.0.1/", "http://[", "http://"])
async def test_a_redirect_to_another_scheme_than_http_is_not_followed(
    http: httpx.AsyncClient, target: str
) -> None:
    async with ScriptedHttpServer.serving({"/": build_response(302, Location=target)}) as web:
        with pytest.raises(ImageUnavailable):
            await fetch(http, web.url)


@each_row(
    "uri",
    [
        "",
        "nonsense",
        "/image",
        "//host/image",
        "file:///etc/passwd",
        "ftp://127.0.0.1/image",
        "data:,image",
        "http:",
        "http:///image",
        "http://[::1",
        "http://host:port/",
        "http://host:99999/",
        "http://a\nb/",
        "http://\ud800/",
        "http://" + "a" * 70_000,
        "http://" + "a." * 200,
        "http://xn--\u00e9/",
        "http://xn--/",
        "https://xn--a/",
        "http://xn--fiqs8s.xn--:1/",
    ],
)
async def test_an_invalid_url_is_rejected(http: httpx.AsyncClient, uri: str) -> None:
    with pytest.raises(ImageUnavailable):
        await fetch(http, uri)


@each_row("status", [204, 206, 304, 400, 401, 403, 404, 500, 503])
async def test_any_other_status_is_an_error(http: httpx.AsyncClient, status: int) -> None:
    async with ScriptedHttpServer.serving({"/": build_response(status)}) as web:
        with pytest.raises(ImageUnavailable, match=f"HTTP status {status}"):
            await fetch(http, web.url)


@each_row(
    "response",
    [
        b"",
        b"nonsense\r\n\r\n",
        build_response(200, BODY, Content_Length=str(len(BODY) + 1)),
        build_response(200, BODY, Content_Length="many"),
        build_response(200, BODY, Content_Length="-1"),
        build_response(200, BODY, Content_Length="9" * 5000),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        build_response(200, BODY, Content_Encoding="gzip"),
    ],
)
async def test_an_incomplete_or_encoded_body_is_an_error(http: httpx.AsyncClient, response: bytes) -> None:
    async with ScriptedHttpServer.serving({"/": response}) as web:
        with pytest.raises(ImageUnavailable):
            await fetch(http, web.url)


async def test_an_unreachable_server_is_an_error(http: httpx.AsyncClient) -> None:
    with pytest.raises(ImageUnavailable, match="cannot be reached"):
        await fetch(http, f"http://127.0.0.1:{free_port()}/")


async def test_a_body_of_the_maximum_size_is_accepted(http: httpx.AsyncClient) -> None:
    async with ScriptedHttpServer.serving({"/": build_response(200, bytes(MAX_BYTES))}) as web:
        assert await fetch(http, web.url) == bytes(MAX_BYTES)


async def test_a_body_whose_announced_length_is_too_large_is_not_read(http: httpx.AsyncClient) -> None:
    async def announce_length(request: HttpRequest, writer: StreamWriter) -> None:
        writer.write(build_response(200, Content_Length=str(MAX_BYTES + 1)))
        await request.reader.read()  # no body is sent: reading it would take until the timeout

    async with ScriptedHttpServer(announce_length) as web:
        with pytest.raises(ImageBroken, match="more than 20000 bytes"):
            await fetch(http, web.url)
        await eventually_async(lambda: not web.busy)


async def test_an_endless_body_is_rejected_at_the_limit(http: httpx.AsyncClient) -> None:
    async def send_endlessly(_: HttpRequest, writer: StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(BODY)
            await writer.drain()

    async with ScriptedHttpServer(send_endlessly) as web:
        with pytest.raises(ImageBroken, match="more than 20000 bytes"):
            await fetch(http, web.url)
        await eventually_async(lambda: not web.busy)


async def test_a_silent_server_times_out(http: httpx.AsyncClient) -> None:
    async def never_respond(request: HttpRequest, _: StreamWriter) -> None:
        await request.reader.read()

    async with ScriptedHttpServer(never_respond) as web:
        with pytest.raises(ImageUnavailable, match="in time"):
            await with_timeout(fetch(http, web.url, idle_timeout=0.05, total_timeout=3600))
        await eventually_async(lambda: not web.busy)


async def test_a_server_that_sends_byte_by_byte_times_out(http: httpx.AsyncClient) -> None:
    async def send_slowly(_: HttpRequest, writer: StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 19999\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.01)

    async with ScriptedHttpServer(send_slowly) as web:
        with pytest.raises(ImageUnavailable, match="in time"):
            await fetch(http, web.url, total_timeout=0.1)
        await eventually_async(lambda: not web.busy)


async def test_a_canceled_download_closes_the_connection(http: httpx.AsyncClient) -> None:
    async def send_part(request: HttpRequest, writer: StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
        await request.reader.read()

    async with ScriptedHttpServer(send_part) as web:
        task = asyncio.create_task(fetch(http, web.url))
        await eventually_async(lambda: web.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually_async(lambda: not web.busy)


async def test_only_the_host_of_a_url_is_logged_or_quoted(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    responses = {
        "/hidden?hidden=1": build_response(302, Location="/hidden?hidden=2"),
        "/hidden?hidden=2": build_response(200, BODY),
        "/hidden?hidden=3": build_response(404),
        "/hidden?hidden=4": build_response(200, BODY, Content_Length="99999"),
        "/hidden?hidden=5": build_response(302, Location="ftp://hidden:hidden@host/hidden"),
        "/hidden?hidden=6": b"hidden\r\n\r\n",
    }
    errors = []
    async with ScriptedHttpServer.serving(responses) as web:
        base_url = web.url.replace("//", "//hidden:hidden@")
        assert await fetch(http, f"{base_url}/hidden?hidden=1") == BODY
        for uri in [f"{base_url}/hidden?hidden={number}" for number in range(3, 7)]:
            with pytest.raises(FleetError) as caught:
                await fetch(http, uri)
            errors.append(f"{caught.value!r} {caught.value.__cause__!r}")
    for uri in ("http://hidden:hidden/", "hidden", f"http://hidden@127.0.0.1:{free_port()}/hidden"):
        with pytest.raises(ImageUnavailable) as caught:
            await fetch(http, uri)
        errors.append(f"{caught.value!r} {caught.value.__cause__!r}")
    assert "127.0.0.1" in caplog.text  # proves that the log was captured
    assert "hidden" not in caplog.text
    assert "hidden" not in "".join(errors)
