"""Opening, closing and logging out of a `Fleet`."""

from __future__ import annotations

import asyncio

import pytest

from meshfleet.client import Fleet, blocking
from meshfleet.client.rest.http_messages import BaseUrl
from meshfleet.client.rest.session import Credentials
from meshfleet.client.rest.transport import HttpTransport
from meshfleet.errors import WrongCredentials
from meshfleet.errors.mqtt import ConnectionClosed
from tests.client.rest.scripted_server import build_problem, build_response, scripted_server

pytestmark = pytest.mark.anyio

ME = build_response(200, {"username": "me", "role": "viewer", "kind": "user"})
KEY = "mfk_not-a-key"
EXPIRED_TOKEN = "x.eyJpYXQiOjAsImV4cCI6M30.x"  # noqa: S105 # expired long ago
"""Token that was valid from second 0 to 3 of the Unix epoch."""
LOGGED_IN = build_response(200, {"status": "SUCCESS", "authToken": "x.new", "sessionId": None})


async def test_a_closed_fleet_raises_link_closed() -> None:
    async with scripted_server(ME) as server:
        async with Fleet(server.url, token=KEY) as fleet:
            await fleet.me()
        with pytest.raises(ConnectionClosed, match="Fleet is closed"):
            await fleet.me()
        with pytest.raises(ConnectionClosed, match="Fleet is closed"):
            await anext(fleet.live())
        with pytest.raises(ConnectionClosed, match="Fleet can be opened only once"):
            await fleet.__aenter__()


async def test_a_blocking_fleet_can_be_opened_only_once() -> None:
    async with scripted_server(ME) as server:

        def open_twice() -> None:
            fleet = blocking.Fleet(server.url, token=KEY)
            with fleet:
                fleet.me()
            with pytest.raises(ConnectionClosed, match="Fleet can be opened only once"):
                fleet.__enter__()

        await asyncio.to_thread(open_twice)


async def test_a_logout_during_a_token_renewal_discards_the_new_token() -> None:
    request_received, may_respond = asyncio.Event(), asyncio.Event()

    async def respond_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        request_received.set()
        await may_respond.wait()
        writer.write(LOGGED_IN)
        writer.close()

    async with await asyncio.start_server(respond_late, "127.0.0.1", 0) as server:
        transport = HttpTransport(
            BaseUrl(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), tls_ca=None, timeout=30
        )
        credentials = Credentials(transport, user="me", password=None, token=EXPIRED_TOKEN)
        renewal = asyncio.create_task(credentials.renew())
        await request_received.wait()
        credentials.clear_token()
        may_respond.set()
        await renewal
        assert credentials.token is None
        await transport.close()


async def test_a_logout_revokes_the_token_that_is_being_renewed() -> None:
    no_content = build_response(204)
    always = {"/api/v1/auth/refresh": LOGGED_IN, "/api/v1/auth/logout": no_content}
    async with scripted_server(ME, always=always) as server, Fleet(server.url, token=EXPIRED_TOKEN) as fleet:
        calling = asyncio.create_task(fleet.me())
        await asyncio.sleep(0)  # lets it start to renew the token
        await fleet.log_out()
        await calling
        (logout,) = [each for each in server.requests if each.path == "/api/v1/auth/logout"]
        assert logout.headers["authorization"] == "Bearer x.new"
        assert fleet.session is None


async def test_a_changed_password_is_tried_after_a_failed_login() -> None:
    async with scripted_server(build_problem(401, "wrong-credentials"), LOGGED_IN) as server:
        transport = HttpTransport(BaseUrl(server.url), tls_ca=None, timeout=30)
        credentials = Credentials(transport, user="me", password="old", token=None)  # noqa: S106 # not a real password
        with pytest.raises(WrongCredentials):
            await credentials.get_token()
        credentials.change_password("new")
        assert await credentials.get_token() == "x.new"
        await transport.close()
