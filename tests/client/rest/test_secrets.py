"""Passwords, tokens and keys, which must not appear in errors, logs and representations."""

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

SECRET = "hunter22hunter22"  # noqa: S105 # not a real password
DEVICE = "c0ffee000001"


def format_everything(error: BaseException) -> str:
    """Format an error and all its causes, with their attributes."""
    text, errors = "", [error]
    while errors:
        current = errors.pop()
        text += "".join(traceback.format_exception(current)) + repr(current) + repr(vars(current))
        request = getattr(current, "_request", None)
        text += str(dict(getattr(request, "headers", {})))  # as a dict: their own repr hides the token
        errors += [other for other in (current.__cause__, current.__context__) if other is not None]
    return text


REPLIES = (
    DROP,
    build_response(404, b"<html>"),
    build_response(200, {"authToken": 3}),
    build_problem(401, "wrong-credentials", f"{SECRET} is wrong"),
    build_problem(400, "invalid-request", f"{SECRET} is wrong"),
    b"nonsense\r\n\r\n",
)


async def test_no_error_contains_a_password_or_a_token(caplog: pytest.LogCaptureFixture) -> None:
    """Test all replies concurrently, because each one is retried."""
    caplog.set_level(logging.DEBUG)
    texts = await asyncio.gather(*map(collect_visible_texts, REPLIES))
    assert [reply for reply, text in zip(REPLIES, texts, strict=True) if SECRET in text] == []
    assert SECRET not in caplog.text


async def collect_visible_texts(reply: bytes) -> str:
    """Collect all texts a user can see of a service that sends this reply to every request."""

    async def fail_to_log_in() -> str:
        async with Fleet(server.url, user="me", password=SECRET) as fleet:
            with pytest.raises(FleetError) as raised:
                await fleet.me()
            return format_everything(raised.value) + repr(fleet)

    async def fail_with_token() -> str:
        async with Fleet(server.url, token=SECRET) as fleet:
            with pytest.raises(FleetError) as raised:
                await fleet.me()
            return format_everything(raised.value) + repr(fleet)

    async def fail_to_stream() -> str:
        async with Fleet(server.url, token=SECRET) as fleet:
            with pytest.raises(FleetError) as raised:
                await anext(fleet.live())
            return format_everything(raised.value) + repr(fleet)

    async with scripted_server(reply) as server:
        return "".join(await asyncio.gather(fail_to_log_in(), fail_with_token(), fail_to_stream()))


async def test_no_error_contains_the_key_of_a_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted_server(DROP) as server, Fleet(server.url, token="mfk_x") as fleet:  # noqa: S106 # not a real key
        with pytest.raises(FleetError) as raised:
            await fleet.requests.write(DEVICE, "8000", "00", key=SECRET, public_key=SECRET)
        assert SECRET in server.requests[0].body.decode()
    assert SECRET not in format_everything(raised.value) + caplog.text


@pytest.mark.parametrize("echoed", [SECRET, SECRET[:4] + "\x1b" + SECRET[4:]], ids=["plain", "disguised"])
async def test_no_error_contains_a_secret_that_the_service_echoes(echoed: str) -> None:
    reply = build_problem(400, "invalid-request", f"{echoed} is wrong")
    async with scripted_server(reply) as server, Fleet(server.url, token="mfk_x") as fleet:  # noqa: S106 # not a real key
        for call in (
            fleet.requests.write(DEVICE, "8000", "00", key=SECRET),
            fleet.requests.read(DEVICE, "8000", public_key=SECRET),
            fleet.users.add("me", SECRET, "viewer"),
            fleet.users.change("me", password=SECRET),
            fleet.change_password(SECRET, "x"),
            fleet.change_password("x", SECRET),
        ):
            with pytest.raises(FleetError, match="… is wrong") as raised:
                await call
            assert SECRET not in format_everything(raised.value)


async def test_no_secret_is_logged(service: LiveService, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    username = service.new_user()
    async with Fleet(service.url, user=username, password="correct-horse-battery") as fleet:  # noqa: S106
        await fleet.me()
        session = fleet.session
    assert session is not None
    assert session.token not in caplog.text
    assert "correct-horse-battery" not in caplog.text


def test_representations_contain_no_secret() -> None:
    fleet = blocking.Fleet("http://127.0.0.1", user="me", password=SECRET)
    request = HttpRequest(method="POST", path="/", body=SECRET.encode(), headers=(("X", SECRET),))
    representations = [
        repr(fleet),
        repr(fleet.users),
        repr(request),
        repr(HttpResponse(status=200, body=SECRET.encode())),
    ]
    assert SECRET not in "".join(representations) + repr(request.__rich_repr__())
