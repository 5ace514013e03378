"""Logging in, and staying in."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import pytest

from meshfleet.client import Fleet, Role, Session
from meshfleet.client.rest.http_messages import BaseUrl
from meshfleet.client.rest.session import Credentials
from meshfleet.client.rest.transport import HttpTransport
from meshfleet.errors import Conflict, NotAllowed, NotLoggedIn, TooManyAttempts, WrongCredentials
from meshfleet.errors.protocol import MalformedText
from tests.client.rest.scripted_server import build_problem, build_response, scripted_server
from tests.row_tables import each_row
from tests.service.http.running_service import PASSWORD

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService

pytestmark = pytest.mark.anyio

OTHER = "another-horse-battery"
TOKEN = "x.eyJpYXQiOjAsImV4cCI6MTgwMH0.x"  # noqa: S105 # of nobody: from 0 to 1800
LOGGED_IN = build_response(200, {"status": "SUCCESS", "authToken": TOKEN, "sessionId": None})
ME = build_response(200, {"username": "me", "role": "viewer", "kind": "user"})


async def logins(service: LiveService, username: str) -> int:
    """How often somebody logged in."""
    async with Fleet(service.url, token=service.admin.headers["Authorization"].split()[1]) as fleet:
        return len([each async for each in fleet.audit.list(actor=username, action="auth.login")])


async def test_nobody_logs_in_before_that_is_needed(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        assert (await fleet.operations.health()).status == "ok"
        assert fleet.session is None
        assert await logins(service, username) == 0
        assert (await fleet.me()).username == username
        assert fleet.session is not None


async def test_all_who_ask_at_once_share_one_login(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        await asyncio.gather(*(fleet.me() for _ in range(20)))
    assert await logins(service, username) == 1


async def test_a_login_that_was_kept_goes_on(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        kept = await fleet.log_in()
    assert (kept.url, kept.user) == (service.url, username)
    async with Fleet(session=kept) as fleet:
        assert (await fleet.me()).username == username
        assert fleet.session == kept
    assert await logins(service, username) == 1


async def test_an_api_key_needs_no_login(service: LiveService) -> None:
    async with Fleet(service.url, token=service.key) as fleet:
        me = await fleet.me()
        assert (me.kind, me.role) == ("api-key", Role.VIEWER)
        with pytest.raises(NotAllowed):
            await fleet.devices.forget(service.new_device())
        with pytest.raises(Conflict):
            await fleet.log_out()
        assert (await fleet.me()).kind == "api-key"


async def test_who_gives_nothing_is_nobody(service: LiveService) -> None:
    async with Fleet(service.url) as fleet:
        with pytest.raises(NotLoggedIn, match="needs a token"):
            await fleet.me()


def test_half_of_a_login_is_none() -> None:
    for given in ({"user": "me"}, {"password": PASSWORD}):
        with pytest.raises(ValueError, match="needs a"):
            Fleet("http://127.0.0.1", **given)  # type: ignore[arg-type] # by their names
    with pytest.raises(ValueError, match="url"):
        Fleet(user="me", password=PASSWORD)


@each_row("token", ["", "two words", "line\r\nX-Other: x", "schlüssel"])
def test_a_token_that_cannot_be_one_is_refused_without_repeating_it(token: str) -> None:
    with pytest.raises(MalformedText) as refused:
        Fleet("http://127.0.0.1", token=token)
    assert not token or token not in str(refused.value)


@pytest.mark.rule("auth-10")
async def test_a_login_that_was_ended_elsewhere_is_replaced(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        first = await fleet.log_in()
        async with Fleet(session=first) as other:
            await other.log_out()
            assert other.session is None
        assert (await fleet.me()).username == username
        assert fleet.session != first
    assert await logins(service, username) == 2


async def test_many_whose_login_was_ended_log_in_once(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        async with Fleet(session=await fleet.log_in()) as other:
            await other.log_out()
        await asyncio.gather(*(fleet.me() for _ in range(20)))
    assert await logins(service, username) == 2


async def test_an_ended_login_without_a_password_is_over(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        kept = await fleet.log_in()
        await fleet.log_out()
        assert fleet.session is None
    async with Fleet(session=kept) as fleet:
        with pytest.raises(NotLoggedIn):
            await fleet.me()
        await fleet.log_out()
        assert fleet.session is None


@pytest.mark.rule("auth-6")
async def test_an_expired_token_is_replaced(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        first = await fleet.log_in()
        service.clock.move(seconds=1801)
        assert (await fleet.me()).username == username
        assert fleet.session != first
    assert await logins(service, username) == 2


@pytest.mark.rule("auth-8", "auth-9")
async def test_a_token_is_traded_before_it_ends_until_only_the_password_helps(service: LiveService) -> None:
    username = service.new_user()
    transport = HttpTransport(BaseUrl(service.url), tls_ca=None, timeout=30)
    credentials = Credentials(
        transport, user=username, password=PASSWORD, token=None, now=lambda: service.clock() / 1000
    )
    try:
        tokens = [await credentials.get_token()]
        for _ in range(31):  # 31 times 25 minutes are more than 12 hours
            service.clock.move(seconds=1499)
            assert await credentials.get_token() == tokens[-1]
            service.clock.move(seconds=1)
            tokens.append(await credentials.get_token())
        assert len(set(tokens)) == 32
        assert await logins(service, username) == 2
    finally:
        await credentials.close()
        await transport.close()


async def test_a_token_that_is_refused_while_it_is_traded_is_replaced(service: LiveService) -> None:
    username = service.new_user()
    transport = HttpTransport(BaseUrl(service.url), tls_ca=None, timeout=30)
    credentials = Credentials(
        transport, user=username, password=PASSWORD, token=None, now=lambda: service.clock() / 1000
    )
    try:
        first = await credentials.get_token()
        service.clock.move(seconds=1500)
        trading = asyncio.create_task(credentials.get_token())
        await asyncio.sleep(0)
        assert credentials.discard_token(first)  # as somebody does whose question was answered with 401
        assert {await trading, await credentials.get_token()} == {credentials.token}
        assert credentials.token != first
        assert await logins(service, username) == 2
    finally:
        await credentials.close()
        await transport.close()


async def test_a_token_that_is_given_is_traded_in_time_too() -> None:
    async with scripted_server(LOGGED_IN, ME) as server, Fleet(server.url, token=TOKEN) as fleet:
        assert (await fleet.me()).username == "me"
        assert [each.path for each in server.requests] == ["/api/v1/auth/refresh", "/api/v1/auth/me"]


async def test_a_token_that_cannot_be_traded_now_is_used_while_it_holds() -> None:
    async with (
        scripted_server(build_problem(500, "internal-error"), ME) as server,
        Fleet(server.url, token=TOKEN) as fleet,
    ):
        assert (await fleet.me()).username == "me"
        assert (await fleet.me()).username == "me"
        assert [each.path.rpartition("/")[2] for each in server.requests] == ["refresh", "me", "me"]


async def test_a_wrong_password_is_tried_once(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=OTHER) as fleet:
        found = await asyncio.gather(*(fleet.me() for _ in range(20)), return_exceptions=True)
        assert {type(each) for each in found} == {WrongCredentials}
        for _ in range(10):
            with pytest.raises(WrongCredentials):
                await fleet.me()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        assert (await fleet.me()).username == username  # nobody is locked out


async def test_a_long_wait_for_the_next_attempt_is_told() -> None:
    locked = build_problem(429, "too-many-attempts", Retry_After="3600")
    async with scripted_server(locked) as server, Fleet(server.url, user="me", password=PASSWORD) as fleet:
        with pytest.raises(TooManyAttempts) as refused:
            await fleet.me()
        assert (refused.value.retry_after, len(server.requests)) == (3600, 1)


@pytest.mark.rule("auth-12")
async def test_who_changes_the_password_stays_in_with_the_new_one(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        with pytest.raises(WrongCredentials):
            await fleet.change_password(OTHER, OTHER)
        await fleet.change_password(PASSWORD, OTHER)
        await fleet.log_out()
        assert (await fleet.me()).username == username


async def test_a_caller_who_gives_up_does_not_end_the_login_of_the_others(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        impatient = asyncio.create_task(fleet.me())
        patient = asyncio.create_task(fleet.me())
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await patient).username == username
        assert impatient.cancelled()
    assert await logins(service, username) == 1


async def test_an_api_key_is_never_renewed() -> None:
    transport = HttpTransport(BaseUrl("http://127.0.0.1"), tls_ca=None, timeout=30)
    credentials = Credentials(transport, user=None, password=None, token="mfk_a.b.c")  # noqa: S106 # of nobody
    assert credentials.seconds_until_renewal == math.inf
    assert await credentials.get_token() == "mfk_a.b.c"
    await transport.close()


def test_a_session_hides_its_token() -> None:
    session = Session(url="http://127.0.0.1", user="me", token=TOKEN)
    assert TOKEN not in repr(session)
