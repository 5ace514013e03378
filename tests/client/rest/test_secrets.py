"""What nobody gets to see."""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import TYPE_CHECKING

import pytest

from meshfleet.client import Fleet, blocking
from meshfleet.client.rest.http_messages import HttpRequest, HttpResponse
from meshfleet.errors import FleetError
from tests.client.rest.scripted_server import DROP, build_problem, build_response, scripted_server

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService

pytestmark = pytest.mark.anyio

SECRET = "hunter22hunter22"  # noqa: S105 # of nobody
DEVICE = "c0ffee000001"


def all_of(error: BaseException) -> str:
    """All that can be seen of an error, and of all errors behind it, with what they hold."""
    seen, waiting = "", [error]
    while waiting:
        each = waiting.pop()
        seen += "".join(traceback.format_exception(each)) + repr(each) + repr(vars(each))
        request = getattr(each, "_request", None)
        seen += str(
            dict(getattr(request, "headers", {}))
        )  # which hide the token by themselves, in their repr
        waiting += [other for other in (each.__cause__, each.__context__) if other is not None]
    return seen


REPLIES = (
    DROP,
    build_response(404, b"<html>"),
    build_response(200, {"authToken": 3}),
    build_problem(401, "wrong-credentials", f"{SECRET} is wrong"),
    build_problem(400, "invalid-request", f"{SECRET} is wrong"),
    b"nonsense\r\n\r\n",
)


async def test_no_error_tells_a_password_or_a_token(caplog: pytest.LogCaptureFixture) -> None:
    """All at once, as each is tried again and again."""
    caplog.set_level(logging.DEBUG)
    told = await asyncio.gather(*map(what_is_told, REPLIES))
    assert [reply for reply, words in zip(REPLIES, told, strict=True) if SECRET in words] == []
    assert SECRET not in caplog.text


async def what_is_told(reply: bytes) -> str:
    """Everything that can be seen where a service gives this reply to all that it is asked."""

    async def of_login() -> str:
        async with Fleet(server.url, user="me", password=SECRET) as fleet:
            with pytest.raises(FleetError) as failed:
                await fleet.me()
            return all_of(failed.value) + repr(fleet)

    async def of_token() -> str:
        async with Fleet(server.url, token=SECRET) as fleet:
            with pytest.raises(FleetError) as failed:
                await fleet.me()
            return all_of(failed.value) + repr(fleet)

    async def of_stream() -> str:
        async with Fleet(server.url, token=SECRET) as fleet:
            with pytest.raises(FleetError) as failed:
                await anext(fleet.live())
            return all_of(failed.value) + repr(fleet)

    async with scripted_server(reply) as server:
        return "".join(await asyncio.gather(of_login(), of_token(), of_stream()))


async def test_no_error_tells_the_key_of_a_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted_server(DROP) as server, Fleet(server.url, token="mfk_x") as fleet:  # noqa: S106 # of nobody
        with pytest.raises(FleetError) as failed:
            await fleet.requests.write(DEVICE, "8000", "00", key=SECRET, public_key=SECRET)
        assert SECRET in server.requests[0].body.decode()
    assert SECRET not in all_of(failed.value) + caplog.text


@pytest.mark.parametrize("said", [SECRET, SECRET[:4] + "\x1b" + SECRET[4:]], ids=["plain", "disguised"])
async def test_no_error_repeats_a_secret_that_the_service_repeats(said: str) -> None:
    told = build_problem(400, "invalid-request", f"{said} is wrong")
    async with scripted_server(told) as server, Fleet(server.url, token="mfk_x") as fleet:  # noqa: S106 # of nobody
        for deed in (
            fleet.requests.write(DEVICE, "8000", "00", key=SECRET),
            fleet.requests.read(DEVICE, "8000", public_key=SECRET),
            fleet.users.add("me", SECRET, "viewer"),
            fleet.users.change("me", password=SECRET),
            fleet.change_password(SECRET, "x"),
            fleet.change_password("x", SECRET),
        ):
            with pytest.raises(FleetError, match="… is wrong") as failed:
                await deed
            assert SECRET not in all_of(failed.value)


async def test_nothing_is_logged_that_is_secret(
    service: LiveService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    username = service.new_user()
    async with Fleet(service.url, user=username, password="correct-horse-battery") as fleet:  # noqa: S106
        await fleet.me()
        session = fleet.session
    assert session is not None
    assert session.token not in caplog.text
    assert "correct-horse-battery" not in caplog.text


def test_nothing_shows_what_it_carries() -> None:
    waiting = blocking.Fleet("http://127.0.0.1", user="me", password=SECRET)
    call = HttpRequest(method="POST", path="/", body=SECRET.encode(), headers=(("X", SECRET),))
    shown = [
        repr(waiting),
        repr(waiting.users),
        repr(call),
        repr(HttpResponse(status=200, body=SECRET.encode())),
    ]
    assert SECRET not in "".join(shown) + repr(call.__rich_repr__())
