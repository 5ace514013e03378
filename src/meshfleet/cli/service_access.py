"""The service that commands talk to: the one of the environment, or the one where somebody is logged in."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click
from msgspec.structs import replace

from meshfleet.cli.options import TLS_CA_VARIABLE
from meshfleet.cli.stored_login import StoredLogin, check_login_private, read_login, save_renewed_token
from meshfleet.cli.terminal import to_printable
from meshfleet.client import Fleet
from meshfleet.client.rest.http_messages import BaseUrl
from meshfleet.errors import Fault, InvalidRequest, NotLoggedIn
from meshfleet.errors.protocol import WireError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping


# What the service, or the SDK, says of a wrong value, in the words of the command line.

_INDEX: Final = re.compile(r"\[\d+\]")
_CAMEL_BOUNDARY: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_OPTION_NAMES: Final[Mapping[str, str]] = {
    "abort.minExecuted": "abort_after",
    "abort.percent": "abort_percent",
    "retry.backoffSeconds": "backoff",
    "retry.max": "retries",
    "targets.deviceIds": "devices",
    "FirmwareId": "firmware",
    "From": "since",
    "To": "until",
    "friendlyName": "name",
    "username": "name",
}
"""Fields whose option is not called like them."""


def to_usage_error(error: InvalidRequest | WireError) -> click.UsageError | None:
    """Return an error with exit code 2 that names the options with wrong values.

    None: the error is about nothing that was given on the command line.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return None
    faults = error.faults if isinstance(error, InvalidRequest) else (Fault(error.field, error.reason),)
    hints = [_format_option(each.field, context) for each in faults]
    if not any(hints):
        return None
    said = [f"{hint or fault.field}: {fault.message}" for hint, fault in zip(hints, faults, strict=True)]
    return click.UsageError(to_printable(f"Invalid value for {'; '.join(said)}"), context)


def _format_option(field: str, context: click.Context) -> str | None:
    """Return how people call the option of a field. An argument is what the command is about, not how."""
    options = {each.name: each for each in context.command.params if isinstance(each, click.Option)}
    found = next((options[name] for name in _candidate_names(field) if name in options), None)
    return None if found is None else found.get_error_hint(context)


def _candidate_names(field: str) -> Iterator[str]:
    """Give names that the option of a field can have, the most likely first."""
    path = _INDEX.sub("", field)
    if path.startswith("targets.filter."):
        yield "filters"
    if path in _OPTION_NAMES:
        yield _OPTION_NAMES[path]
    for part in (path.rpartition(".")[2], path.partition(".")[0]):
        name = _CAMEL_BOUNDARY.sub("_", part).lower()
        yield from (name, f"{name}s")


T = TypeVar("T")

_SAVE_TOKEN_SECONDS: Final = 5.0
"""Seconds between looks for a new token, which other commands want to have too."""


class _ServiceAccess(NamedTuple):
    """A service, and what opens the door there."""

    url: str
    token: str
    tls_ca: str | None
    """The file with those that vouch for the service, instead of the system's."""
    login: StoredLogin | None
    """None: it comes from the environment, and is not ours to keep."""


def call_service(work: Callable[[Fleet], Coroutine[Any, Any, T]]) -> T:
    """Do some work at the service, and give what comes of it."""
    return asyncio.run(_call_service(work))


async def _call_service(work: Callable[[Fleet], Coroutine[Any, Any, T]]) -> T:
    async with open_fleet() as fleet:
        return await work(fleet)


@asynccontextmanager
async def open_fleet() -> AsyncIterator[Fleet]:
    """The service, for as long as the block lasts; a new token is kept for the next command."""
    access = _find_access()
    authorities = Path(access.tls_ca) if access.tls_ca else None
    fleet = Fleet(access.url, token=access.token, tls_ca=authorities)
    try:
        async with fleet, _save_renewed_tokens(fleet, access.login):
            yield fleet
    except NotLoggedIn as exc:
        raise click.ClickException(_format_login_hint(access)) from exc
    except (InvalidRequest, WireError) as exc:
        refusal = to_usage_error(exc)
        if refusal is None:
            raise
        raise refusal from exc


@asynccontextmanager
async def _save_renewed_tokens(fleet: Fleet, login: StoredLogin | None) -> AsyncIterator[None]:
    if login is None:
        yield
        return
    keeper = asyncio.create_task(_save_periodically(fleet, login))
    try:
        yield
    finally:
        keeper.cancel()
        await asyncio.wait([keeper])


async def _save_periodically(fleet: Fleet, login: StoredLogin) -> None:
    """Keep every new token, the last one when it is cancelled."""
    known = login
    try:
        while True:
            await asyncio.sleep(_SAVE_TOKEN_SECONDS)
            known = _save_if_renewed(fleet, known)
    finally:
        _save_if_renewed(fleet, known)


def _save_if_renewed(fleet: Fleet, known: StoredLogin) -> StoredLogin:
    session = fleet.session
    if session is None or session.token == known.token:
        return known
    try:
        return save_renewed_token(known, session.token)
    except click.ClickException as exc:  # the command goes on, and the next one will have to log in
        click.echo(f"Warning: {exc.message}", err=True)
        return replace(known, token=session.token)


def _find_access() -> _ServiceAccess:
    url, token = os.environ.get("MESHFLEET_URL"), os.environ.get("MESHFLEET_TOKEN")
    if url and token:
        return _ServiceAccess(str(BaseUrl(url)), token, os.environ.get(TLS_CA_VARIABLE), None)
    if token:
        raise click.UsageError("MESHFLEET_TOKEN is set, and MESHFLEET_URL does not say for which service.")
    asked = str(BaseUrl(url)) if url else None
    login = read_login()
    if login is None or (asked and asked != login.url):
        where = f" at {asked}" if asked else ""
        raise click.ClickException(
            f"not logged in{where}: run meshfleet login --url {shlex.quote(asked or 'URL')} --user NAME"
        )
    check_login_private()
    return _ServiceAccess(login.url, login.token, login.tls_ca, login)


def _format_login_hint(access: _ServiceAccess) -> str:
    if access.login is None:
        return f"{access.url} does not take MESHFLEET_TOKEN: issue another key with meshfleet keys add"
    url, user = shlex.quote(access.url), shlex.quote(access.login.user)
    return to_printable(
        f"not logged in at {access.url} any more: run meshfleet login --url {url} --user {user}"
    )
