"""A fleet is opened once, and used while it is open; who logs out is out."""

from __future__ import annotations

import asyncio

import pytest

from meshfleet.client import Fleet, blocking
from meshfleet.client.rest.http_messages import BaseUrl
from meshfleet.client.rest.session import Credentials
from meshfleet.client.rest.transport import HttpTransport
from meshfleet.errors import WrongCredentials
from meshfleet.errors.mqtt import LinkClosed
from tests.client.rest.scripted_server import build_problem, build_response, scripted_server

pytestmark = pytest.mark.anyio

ME = build_response(200, {"username": "me", "role": "viewer", "kind": "user"})
KEY = "mfk_of-nobody"
ENDED = "x.eyJpYXQiOjAsImV4cCI6M30.x"
"""A token from 0 to 3."""
LOGGED_IN = build_response(200, {"status": "SUCCESS", "authToken": "x.new", "sessionId": None})


async def test_a_fleet_that_is_closed_says_so() -> None:
    async with scripted_server(ME) as server:
        async with Fleet(server.url, token=KEY) as fleet:
            await fleet.me()
        with pytest.raises(LinkClosed, match="Fleet is closed"):
            await fleet.me()
        with pytest.raises(LinkClosed, match="Fleet is closed"):
            await anext(fleet.live())
        with pytest.raises(LinkClosed, match="Fleet is opened once"):
            await fleet.__aenter__()


async def test_a_blocking_fleet_is_opened_once_too() -> None:
    async with scripted_server(ME) as server:

        def use() -> None:
            fleet = blocking.Fleet(server.url, token=KEY)
            with fleet:
                fleet.me()
            with pytest.raises(LinkClosed, match="Fleet is opened once"):
                fleet.__enter__()

        await asyncio.to_thread(use)


async def test_who_logs_out_while_a_token_is_renewed_is_out() -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def hesitate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await answered.wait()
        writer.write(LOGGED_IN)
        writer.close()

    async with await asyncio.start_server(hesitate, "127.0.0.1", 0) as server:
        transport = HttpTransport(
            BaseUrl(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), tls_ca=None, timeout=30
        )
        credentials = Credentials(transport, user="me", password=None, token=ENDED)
        renewal = asyncio.create_task(credentials.renew())
        await asked.wait()
        credentials.clear_token()
        answered.set()
        await renewal
        assert credentials.token is None
        await transport.close()


async def test_a_log_out_ends_the_token_that_is_just_coming() -> None:
    done = build_response(204)
    always = {"/api/v1/auth/refresh": LOGGED_IN, "/api/v1/auth/logout": done}
    async with scripted_server(ME, always=always) as server, Fleet(server.url, token=ENDED) as fleet:
        asking = asyncio.create_task(fleet.me())
        await asyncio.sleep(0)  # so that it has begun to renew the token
        await fleet.log_out()
        await asking
        (out,) = [each for each in server.requests if each.path == "/api/v1/auth/logout"]
        assert out.headers["authorization"] == "Bearer x.new"
        assert fleet.session is None


async def test_a_new_password_is_tried_although_the_old_one_was_wrong() -> None:
    async with scripted_server(build_problem(401, "wrong-credentials"), LOGGED_IN) as server:
        transport = HttpTransport(BaseUrl(server.url), tls_ca=None, timeout=30)
        credentials = Credentials(transport, user="me", password="old", token=None)  # noqa: S106 # of nobody
        with pytest.raises(WrongCredentials):
            await credentials.get_token()
        credentials.change_password("new")
        assert await credentials.get_token() == "x.new"
        await transport.close()
