"""The service that commands talk to: the one of the environment, or the one where somebody is logged in."""

from __future__ import annotations

import asyncio
import os
import shlex
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click
from msgspec.structs import replace

from meshfleet.cli.options import TLS_CA
from meshfleet.cli.remote.refusals import wrong_usage
from meshfleet.cli.remote.stored_login import StoredLogin, check_private, read_login, renew_login
from meshfleet.cli.terminal import printable
from meshfleet.client import Fleet
from meshfleet.client.rest.address import Base
from meshfleet.errors import InvalidRequest, NotLoggedIn, WireError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

T = TypeVar("T")

_LOOK_EVERY: Final = 5.0
"""Seconds between looks for a new token, which other commands want to have too."""


class _Access(NamedTuple):
    """A service, and what opens the door there."""

    url: str
    token: str
    authorities: str | None
    """The file with those that vouch for the service, instead of the system's."""
    login: StoredLogin | None
    """None: it comes from the environment, and is not ours to keep."""


def talk(work: Callable[[Fleet], Coroutine[Any, Any, T]]) -> T:
    """Do some work at the service, and give what comes of it."""
    return asyncio.run(_talk(work))


async def _talk(work: Callable[[Fleet], Coroutine[Any, Any, T]]) -> T:
    async with reach() as fleet:
        return await work(fleet)


@asynccontextmanager
async def reach() -> AsyncIterator[Fleet]:
    """The service, for as long as the block lasts; a new token is kept for the next command."""
    access = _access()
    authorities = Path(access.authorities) if access.authorities else None
    fleet = Fleet(access.url, token=access.token, tls_ca=authorities)
    try:
        async with fleet, _kept(fleet, access.login):
            yield fleet
    except NotLoggedIn as exc:
        raise click.ClickException(_advice(access)) from exc
    except (InvalidRequest, WireError) as exc:
        refusal = wrong_usage(exc)
        if refusal is None:
            raise
        raise refusal from exc


@asynccontextmanager
async def _kept(fleet: Fleet, login: StoredLogin | None) -> AsyncIterator[None]:
    if login is None:
        yield
        return
    keeper = asyncio.create_task(_keep(fleet, login))
    try:
        yield
    finally:
        keeper.cancel()
        await asyncio.wait([keeper])


async def _keep(fleet: Fleet, login: StoredLogin) -> None:
    """Keep every new token, the last one when it is cancelled."""
    known = login
    try:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            known = _renewed(fleet, known)
    finally:
        _renewed(fleet, known)


def _renewed(fleet: Fleet, known: StoredLogin) -> StoredLogin:
    session = fleet.session
    if session is None or session.token == known.token:
        return known
    try:
        return renew_login(known, session.token)
    except click.ClickException as exc:  # the command goes on, and the next one will have to log in
        click.echo(f"Warning: {exc.message}", err=True)
        return replace(known, token=session.token)


def _access() -> _Access:
    url, token = os.environ.get("MESHFLEET_URL"), os.environ.get("MESHFLEET_TOKEN")
    if url and token:
        return _Access(str(Base(url)), token, os.environ.get(TLS_CA), None)
    if token:
        raise click.UsageError("MESHFLEET_TOKEN is set, and MESHFLEET_URL does not say for which service.")
    asked = str(Base(url)) if url else None
    login = read_login()
    if login is None or (asked and asked != login.url):
        where = f" at {asked}" if asked else ""
        raise click.ClickException(
            f"not logged in{where}: run meshfleet login --url {shlex.quote(asked or 'URL')} --user NAME"
        )
    check_private()
    return _Access(login.url, login.token, login.tls_ca, login)


def _advice(access: _Access) -> str:
    if access.login is None:
        return f"{access.url} does not take MESHFLEET_TOKEN: issue another key with meshfleet keys add"
    url, user = shlex.quote(access.url), shlex.quote(access.login.user)
    return printable(f"not logged in at {access.url} any more: run meshfleet login --url {url} --user {user}")
