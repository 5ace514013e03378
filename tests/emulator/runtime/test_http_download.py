"""Bodies are fetched from servers that behave, and given up with those that do not."""

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
LIMIT = 20_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        verify=NO_TRUSTED_AUTHORITIES, trust_env=False, auth=("ours", "hunter22")
    ) as client:
        yield client


async def fetch(http: httpx.AsyncClient, uri: str, *, silence: float = 30, within: float = 30) -> bytes:
    return await download_image(http, uri, max_bytes=LIMIT, idle_timeout=silence, total_timeout=within)


async def test_a_body_comes_as_it_is(http: httpx.AsyncClient) -> None:
    async with ScriptedHttpServer.serving({"/image?a=b%20c": build_response(200, BODY)}) as web:
        assert await fetch(http, f"{web.url}/image?a=b%20c") == BODY
    [asked] = web.requests
    assert asked.headers["accept-encoding"] == "identity"


async def test_a_body_without_a_length_ends_with_the_connection(http: httpx.AsyncClient) -> None:
    async with ScriptedHttpServer.serving({"/": b"HTTP/1.0 200 OK\r\n\r\n" + BODY}) as web:
        assert await fetch(http, web.url) == BODY


async def test_credentials_of_the_client_stay_at_home(http: httpx.AsyncClient) -> None:
    async with ScriptedHttpServer.serving({"/": build_response(200, BODY)}) as web:
        await fetch(http, web.url)
    [asked] = web.requests
    assert "authorization" not in asked.headers


async def test_credentials_of_the_address_are_shown_to_its_server(http: httpx.AsyncClient) -> None:
    async with ScriptedHttpServer.serving({"/": build_response(200, BODY)}) as web:
        await fetch(http, web.url.replace("//", "//a:b@"))
    [asked] = web.requests
    assert asked.headers["authorization"] == "Basic YTpi"


@each_row("status", [301, 302, 303, 307, 308])
async def test_three_redirects_are_followed(http: httpx.AsyncClient, status: int) -> None:
    async with ScriptedHttpServer.serving({"/last": build_response(200, BODY)}) as far:
        pages = {f"/{number}": build_response(status, Location=f"/{number + 1}") for number in range(2)}
        async with ScriptedHttpServer.serving(
            pages | {"/2": build_response(status, Location=f"{far.url}/last")}
        ) as near:
            assert await fetch(http, f"{near.url}/0") == BODY


async def test_a_fourth_redirect_is_not_followed(http: httpx.AsyncClient) -> None:
    async with ScriptedHttpServer.serving({"/": build_response(302, Location="/")}) as web:
        with pytest.raises(ImageUnavailable, match="redirects too often"):
            await fetch(http, web.url)
    assert len(web.requests) == 4


@each_row("target", ["file:///etc/passwd", "ftp://127.0.0.1/", "http://[", "http://"])
async def test_a_redirect_leads_to_http_or_nowhere(http: httpx.AsyncClient, target: str) -> None:
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
async def test_an_address_is_one_of_http_or_of_no_use(http: httpx.AsyncClient, uri: str) -> None:
    with pytest.raises(ImageUnavailable):
        await fetch(http, uri)


@each_row("status", [204, 206, 304, 400, 401, 403, 404, 500, 503])
async def test_any_other_status_is_no_body(http: httpx.AsyncClient, status: int) -> None:
    async with ScriptedHttpServer.serving({"/": build_response(status)}) as web:
        with pytest.raises(ImageUnavailable, match=f"HTTP status {status}"):
            await fetch(http, web.url)


@each_row(
    "given",
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
async def test_a_body_that_is_not_whole_is_none(http: httpx.AsyncClient, given: bytes) -> None:
    async with ScriptedHttpServer.serving({"/": given}) as web:
        with pytest.raises(ImageUnavailable):
            await fetch(http, web.url)


async def test_a_server_that_is_not_there_cannot_be_reached(http: httpx.AsyncClient) -> None:
    with pytest.raises(ImageUnavailable, match="cannot be reached"):
        await fetch(http, f"http://127.0.0.1:{free_port()}/")


async def test_a_body_of_the_largest_size_is_taken(http: httpx.AsyncClient) -> None:
    async with ScriptedHttpServer.serving({"/": build_response(200, bytes(LIMIT))}) as web:
        assert await fetch(http, web.url) == bytes(LIMIT)


async def test_a_body_that_says_it_is_too_large_is_not_read(http: httpx.AsyncClient) -> None:
    async def announce(asked: HttpRequest, writer: StreamWriter) -> None:
        writer.write(build_response(200, Content_Length=str(LIMIT + 1)))
        await asked.reader.read()  # not a byte of it comes: reading would take until the time is over

    async with ScriptedHttpServer(announce) as web:
        with pytest.raises(ImageBroken, match="more than 20000 bytes"):
            await fetch(http, web.url)
        await eventually_async(lambda: not web.busy)


async def test_an_endless_body_ends_at_the_limit(http: httpx.AsyncClient) -> None:
    async def pour(_: HttpRequest, writer: StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(BODY)
            await writer.drain()

    async with ScriptedHttpServer(pour) as web:
        with pytest.raises(ImageBroken, match="more than 20000 bytes"):
            await fetch(http, web.url)
        await eventually_async(lambda: not web.busy)


async def test_a_silent_server_is_left(http: httpx.AsyncClient) -> None:
    async def say_nothing(asked: HttpRequest, _: StreamWriter) -> None:
        await asked.reader.read()

    async with ScriptedHttpServer(say_nothing) as web:
        with pytest.raises(ImageUnavailable, match="in time"):
            await with_timeout(fetch(http, web.url, silence=0.05, within=3600))
        await eventually_async(lambda: not web.busy)


async def test_a_server_that_sends_drop_by_drop_is_left(http: httpx.AsyncClient) -> None:
    async def drip(_: HttpRequest, writer: StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 19999\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.01)

    async with ScriptedHttpServer(drip) as web:
        with pytest.raises(ImageUnavailable, match="in time"):
            await fetch(http, web.url, within=0.1)
        await eventually_async(lambda: not web.busy)


async def test_a_cancelled_download_hangs_up(http: httpx.AsyncClient) -> None:
    async def begin(asked: HttpRequest, writer: StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
        await asked.reader.read()

    async with ScriptedHttpServer(begin) as web:
        fetching = asyncio.create_task(fetch(http, web.url))
        await eventually_async(lambda: web.requests)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        await eventually_async(lambda: not web.busy)


async def test_nothing_of_an_address_but_its_host_is_told(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    pages = {
        "/hidden?hidden=1": build_response(302, Location="/hidden?hidden=2"),
        "/hidden?hidden=2": build_response(200, BODY),
        "/hidden?hidden=3": build_response(404),
        "/hidden?hidden=4": build_response(200, BODY, Content_Length="99999"),
        "/hidden?hidden=5": build_response(302, Location="ftp://hidden:hidden@host/hidden"),
        "/hidden?hidden=6": b"hidden\r\n\r\n",
    }
    said = []
    async with ScriptedHttpServer.serving(pages) as web:
        place = web.url.replace("//", "//hidden:hidden@")
        assert await fetch(http, f"{place}/hidden?hidden=1") == BODY
        for uri in [f"{place}/hidden?hidden={number}" for number in range(3, 7)]:
            with pytest.raises(FleetError) as failed:
                await fetch(http, uri)
            said.append(f"{failed.value!r} {failed.value.__cause__!r}")
    for uri in ("http://hidden:hidden/", "hidden", f"http://hidden@127.0.0.1:{free_port()}/hidden"):
        with pytest.raises(ImageUnavailable) as refused:
            await fetch(http, uri)
        said.append(f"{refused.value!r} {refused.value.__cause__!r}")
    assert "127.0.0.1" in caplog.text  # so that it was listened to
    assert "hidden" not in caplog.text
    assert "hidden" not in "".join(said)
