"""Connects to the service named by environment variables, or to the service of the stored login."""

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
from meshfleet.errors.protocol import MalformedInput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping


# --- Errors of the REST API about a field, as errors about a command-line option ---

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
"""Parameter names of command-line options whose REST field (the key) has a different name."""


def to_usage_error(error: InvalidRequest | MalformedInput) -> click.UsageError | None:
    """Convert an error about REST fields to an error that names the command-line options (exit code 2).

    Return None if the error is not about an option.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return None
    faults = error.faults if isinstance(error, InvalidRequest) else (Fault(error.field, error.reason),)
    hints = [_format_option(each.field, context) for each in faults]
    if not any(hints):
        return None
    messages = [f"{hint or fault.field}: {fault.message}" for hint, fault in zip(hints, faults, strict=True)]
    return click.UsageError(to_printable(f"Invalid value for {'; '.join(messages)}"), context)


def _format_option(field: str, context: click.Context) -> str | None:
    """Return the option for a REST field as written on the command line; None if there is no such option."""
    options = {each.name: each for each in context.command.params if isinstance(each, click.Option)}
    found = next((options[name] for name in _candidate_names(field) if name in options), None)
    return None if found is None else found.get_error_hint(context)


def _candidate_names(field: str) -> Iterator[str]:
    """Yield the parameter names that the option for a REST field may have, the most likely first."""
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
"""Seconds between two checks whether the access token was renewed and must be saved for other commands."""


class _ServiceAccess(NamedTuple):
    """URL of a service, and an access token or API key for it."""

    url: str
    token: str
    tls_ca: str | None
    """PEM file with the certificate authorities to trust; None for those of the system."""
    login: StoredLogin | None
    """Stored login that contained the token; None if the token is from the environment."""


def call_service(work: Callable[[Fleet], Coroutine[Any, Any, T]]) -> T:
    """Call `work` with an SDK client that is connected to the service. Return the result of `work`."""
    return asyncio.run(_call_service(work))


async def _call_service(work: Callable[[Fleet], Coroutine[Any, Any, T]]) -> T:
    async with open_fleet() as fleet:
        return await work(fleet)


@asynccontextmanager
async def open_fleet() -> AsyncIterator[Fleet]:
    """Open an SDK client for the service. A renewed access token is saved for the next command.

    Raise `ClickException` if the user is not logged in, and `UsageError` if the service rejects the value of
    an option.
    """
    access = _find_access()
    authorities = Path(access.tls_ca) if access.tls_ca else None
    fleet = Fleet(access.url, token=access.token, tls_ca=authorities)
    try:
        async with fleet, _saving_renewed_tokens(fleet, access.login):
            yield fleet
    except NotLoggedIn as exc:
        raise click.ClickException(_format_login_hint(access)) from exc
    except (InvalidRequest, MalformedInput) as exc:
        usage_error = to_usage_error(exc)
        if usage_error is None:
            raise
        raise usage_error from exc


@asynccontextmanager
async def _saving_renewed_tokens(fleet: Fleet, login: StoredLogin | None) -> AsyncIterator[None]:
    """Save renewed access tokens during an `async with` block. Do nothing if `login` is None."""
    if login is None:
        yield
        return
    saver = asyncio.create_task(_save_renewed_tokens(fleet, login))
    try:
        yield
    finally:
        saver.cancel()
        await asyncio.wait([saver])


async def _save_renewed_tokens(fleet: Fleet, login: StoredLogin) -> None:
    """Save each renewed access token to the login file, until canceled. Save a last renewed token then."""
    saved = login
    try:
        while True:
            await asyncio.sleep(_SAVE_TOKEN_SECONDS)
            saved = _save_token_if_renewed(fleet, saved)
    finally:
        _save_token_if_renewed(fleet, saved)


def _save_token_if_renewed(fleet: Fleet, saved: StoredLogin) -> StoredLogin:
    session = fleet.session
    if session is None or session.token == saved.token:
        return saved
    try:
        return save_renewed_token(saved, session.token)
    except click.ClickException as exc:  # the command goes on, but the next one needs a new login
        click.echo(f"Warning: {exc.message}", err=True)
        return replace(saved, token=session.token)


def _find_access() -> _ServiceAccess:
    """Return the service and token that environment variables name, or else those of the stored login."""
    url, token = os.environ.get("MESHFLEET_URL"), os.environ.get("MESHFLEET_TOKEN")
    if url and token:
        return _ServiceAccess(str(BaseUrl(url)), token, os.environ.get(TLS_CA_VARIABLE), None)
    if token:
        raise click.UsageError(
            "MESHFLEET_TOKEN is set, but MESHFLEET_URL is not: set it to the URL of the service."
        )
    given_url = str(BaseUrl(url)) if url else None
    login = read_login()
    if login is None or (given_url and given_url != login.url):
        service = f" to {given_url}" if given_url else ""
        raise click.ClickException(
            f"not logged in{service}: run meshfleet login --url {shlex.quote(given_url or 'URL')} --user NAME"
        )
    check_login_private()
    return _ServiceAccess(login.url, login.token, login.tls_ca, login)


def _format_login_hint(access: _ServiceAccess) -> str:
    if access.login is None:
        return f"{access.url} rejects MESHFLEET_TOKEN: create a new API key with meshfleet keys add"
    url, user = shlex.quote(access.url), shlex.quote(access.login.user)
    return to_printable(
        f"the login to {access.url} has expired: run meshfleet login --url {url} --user {user}"
    )
