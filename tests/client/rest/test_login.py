"""Logins, and renewal of access tokens."""

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

OTHER_PASSWORD = "another-horse-battery"  # noqa: S105 # not a real password
TOKEN = "x.eyJpYXQiOjAsImV4cCI6MTgwMH0.x"  # noqa: S105 # not a real token; valid from second 0 to 1800 of the Unix epoch
LOGGED_IN = build_response(200, {"status": "SUCCESS", "authToken": TOKEN, "sessionId": None})
ME = build_response(200, {"username": "me", "role": "viewer", "kind": "user"})


async def count_logins(service: LiveService, username: str) -> int:
    """Count the logins of a user in the audit log."""
    async with Fleet(service.url, token=service.admin.headers["Authorization"].split()[1]) as fleet:
        return len([each async for each in fleet.audit.list(actor=username, action="auth.login")])


async def test_the_login_happens_at_the_first_call_that_needs_it(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        assert (await fleet.operations.health()).status == "ok"
        assert fleet.session is None
        assert await count_logins(service, username) == 0
        assert (await fleet.me()).username == username
        assert fleet.session is not None


async def test_concurrent_calls_share_one_login(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        await asyncio.gather(*(fleet.me() for _ in range(20)))
    assert await count_logins(service, username) == 1


async def test_a_stored_session_can_be_used_again(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        session = await fleet.log_in()
    assert (session.url, session.user) == (service.url, username)
    async with Fleet(session=session) as fleet:
        assert (await fleet.me()).username == username
        assert fleet.session == session
    assert await count_logins(service, username) == 1


async def test_an_api_key_needs_no_login(service: LiveService) -> None:
    async with Fleet(service.url, token=service.key) as fleet:
        me = await fleet.me()
        assert (me.kind, me.role) == ("api-key", Role.VIEWER)
        with pytest.raises(NotAllowed):
            await fleet.devices.forget(service.new_device())
        with pytest.raises(Conflict):
            await fleet.log_out()
        assert (await fleet.me()).kind == "api-key"


async def test_a_fleet_without_credentials_is_not_logged_in(service: LiveService) -> None:
    async with Fleet(service.url) as fleet:
        with pytest.raises(NotLoggedIn, match="is required"):
            await fleet.me()


def test_user_and_password_must_be_given_together() -> None:
    for arguments in ({"user": "me"}, {"password": PASSWORD}):
        with pytest.raises(ValueError, match="given together"):
            Fleet("http://127.0.0.1", **arguments)  # type: ignore[arg-type] # keywords of Fleet
    with pytest.raises(ValueError, match="url"):
        Fleet(user="me", password=PASSWORD)


@each_row("token", ["", "two words", "line\r\nX-Other: x", "schlüssel"])
def test_an_invalid_token_is_refused_without_quoting_it(token: str) -> None:
    with pytest.raises(MalformedText) as raised:
        Fleet("http://127.0.0.1", token=token)
    assert not token or token not in str(raised.value)


@pytest.mark.rule("auth-10")
async def test_a_login_that_was_revoked_elsewhere_is_replaced(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        first = await fleet.log_in()
        async with Fleet(session=first) as other:
            await other.log_out()
            assert other.session is None
        assert (await fleet.me()).username == username
        assert fleet.session != first
    assert await count_logins(service, username) == 2


async def test_concurrent_calls_after_a_revoked_login_log_in_once(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        async with Fleet(session=await fleet.log_in()) as other:
            await other.log_out()
        await asyncio.gather(*(fleet.me() for _ in range(20)))
    assert await count_logins(service, username) == 2


async def test_a_revoked_login_without_a_password_is_not_replaced(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        session = await fleet.log_in()
        await fleet.log_out()
        assert fleet.session is None
    async with Fleet(session=session) as fleet:
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
    assert await count_logins(service, username) == 2


@pytest.mark.rule("auth-8", "auth-9")
async def test_a_token_is_renewed_before_it_expires_until_a_new_login_is_needed(service: LiveService) -> None:
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
        assert await count_logins(service, username) == 2
    finally:
        await credentials.close()
        await transport.close()


async def test_a_token_that_is_rejected_during_its_renewal_is_replaced(service: LiveService) -> None:
    username = service.new_user()
    transport = HttpTransport(BaseUrl(service.url), tls_ca=None, timeout=30)
    credentials = Credentials(
        transport, user=username, password=PASSWORD, token=None, now=lambda: service.clock() / 1000
    )
    try:
        first = await credentials.get_token()
        service.clock.move(seconds=1500)
        renewing = asyncio.create_task(credentials.get_token())
        await asyncio.sleep(0)
        assert credentials.discard_token(first)  # as a call does after a 401 response
        assert {await renewing, await credentials.get_token()} == {credentials.token}
        assert credentials.token != first
        assert await count_logins(service, username) == 2
    finally:
        await credentials.close()
        await transport.close()


async def test_a_supplied_token_is_renewed_in_time() -> None:
    async with scripted_server(LOGGED_IN, ME) as server, Fleet(server.url, token=TOKEN) as fleet:
        assert (await fleet.me()).username == "me"
        assert [each.path for each in server.requests] == ["/api/v1/auth/refresh", "/api/v1/auth/me"]


async def test_a_token_that_cannot_be_renewed_now_is_used_until_it_expires() -> None:
    async with (
        scripted_server(build_problem(500, "internal-error"), ME) as server,
        Fleet(server.url, token=TOKEN) as fleet,
    ):
        assert (await fleet.me()).username == "me"
        assert (await fleet.me()).username == "me"
        assert [each.path.rpartition("/")[2] for each in server.requests] == ["refresh", "me", "me"]


async def test_a_wrong_password_is_tried_only_once(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=OTHER_PASSWORD) as fleet:
        errors = await asyncio.gather(*(fleet.me() for _ in range(20)), return_exceptions=True)
        assert {type(each) for each in errors} == {WrongCredentials}
        for _ in range(10):
            with pytest.raises(WrongCredentials):
                await fleet.me()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        assert (await fleet.me()).username == username  # the account is not locked


async def test_a_long_retry_after_is_raised() -> None:
    locked = build_problem(429, "too-many-attempts", Retry_After="3600")
    async with scripted_server(locked) as server, Fleet(server.url, user="me", password=PASSWORD) as fleet:
        with pytest.raises(TooManyAttempts) as raised:
            await fleet.me()
        assert (raised.value.retry_after, len(server.requests)) == (3600, 1)


@pytest.mark.rule("auth-12")
async def test_changing_the_password_keeps_the_login(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        with pytest.raises(WrongCredentials):
            await fleet.change_password(OTHER_PASSWORD, OTHER_PASSWORD)
        await fleet.change_password(PASSWORD, OTHER_PASSWORD)
        await fleet.log_out()
        assert (await fleet.me()).username == username


async def test_a_canceled_call_does_not_cancel_the_login_of_others(service: LiveService) -> None:
    username = service.new_user()
    async with Fleet(service.url, user=username, password=PASSWORD) as fleet:
        canceled = asyncio.create_task(fleet.me())
        other = asyncio.create_task(fleet.me())
        await asyncio.sleep(0)
        canceled.cancel()
        assert (await other).username == username
        assert canceled.cancelled()
    assert await count_logins(service, username) == 1


async def test_an_api_key_is_never_renewed() -> None:
    transport = HttpTransport(BaseUrl("http://127.0.0.1"), tls_ca=None, timeout=30)
    credentials = Credentials(transport, user=None, password=None, token="mfk_a.b.c")  # noqa: S106 # not a real key
    assert credentials.seconds_until_renewal == math.inf
    assert await credentials.get_token() == "mfk_a.b.c"
    await transport.close()


def test_the_representation_of_a_session_omits_its_token() -> None:
    session = Session(url="http://127.0.0.1", user="me", token=TOKEN)
    assert TOKEN not in repr(session)
