"""`meshfleet login` and `meshfleet logout`: store and delete the login that other commands use."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from meshfleet.cli.arguments import USERNAME
from meshfleet.cli.options import TEXT, parse_text, tls_ca_option
from meshfleet.cli.output import json_option, print_result
from meshfleet.cli.stored_login import StoredLogin, delete_login, login_path, read_login, save_login
from meshfleet.cli.terminal import to_printable
from meshfleet.client import Fleet
from meshfleet.errors import FleetError, NotLoggedIn


@click.command()
@json_option
def logout(*, as_json: bool) -> None:
    """Log out of the service and delete the login stored on this machine."""
    try:
        stored = read_login()
    except click.ClickException as exc:  # unreadable: the service is unknown, but the file must go
        delete_login()
        raise click.ClickException(
            f"the stored login is deleted, but no service was notified: {exc.message}"
        ) from exc
    if stored is None:
        print_result({"loggedOut": False}, "You are not logged in.", as_json=as_json)
        return
    try:
        asyncio.run(_log_out(stored))
    except NotLoggedIn:
        pass  # the login has expired already
    except FleetError as exc:
        delete_login()
        reason = (
            "the stored login is deleted, but the service was not notified; "
            f"the token expires by itself: {exc}"
        )
        raise click.ClickException(to_printable(reason)) from exc
    delete_login()
    result = {"loggedOut": True, "url": stored.url, "username": stored.user}
    print_result(result, f"Logged out of {stored.url}.", as_json=as_json)


async def _log_out(stored: StoredLogin) -> None:
    authorities = stored.tls_ca and Path(stored.tls_ca)
    async with Fleet(stored.url, token=stored.token, tls_ca=authorities or None) as fleet:
        await fleet.log_out()


@click.command()
@click.option(
    "--url",
    type=TEXT,
    envvar="MESHFLEET_URL",
    show_envvar=True,
    required=True,
    help="URL of the Meshfleet service.",
)
@click.option("--user", type=USERNAME, required=True, help="Name of your user account at the service.")
@click.option(
    "--password",
    type=TEXT,
    envvar="MESHFLEET_PASSWORD",
    show_envvar=True,
    help="Password of the user account; prompted for if not given.",
)
@tls_ca_option
@json_option
def login(url: str, user: str, password: str | None, tls_ca: Path | None, *, as_json: bool) -> None:
    """Log in to a Meshfleet service, which all later commands use. The password is not stored."""
    authorities = None if tls_ca is None else tls_ca.absolute()
    stored, role = asyncio.run(_log_in(url, user, password or _read_password(), authorities))
    save_login(stored)
    result = {"url": stored.url, "username": stored.user, "role": role, "file": str(login_path())}
    print_result(result, f"Logged in to {stored.url} as {stored.user} ({role}).", as_json=as_json)


async def _log_in(url: str, user: str, password: str, authorities: Path | None) -> tuple[StoredLogin, str]:
    async with Fleet(url, user=user, password=password, tls_ca=authorities) as fleet:
        session, me = await fleet.log_in(), await fleet.me()
        return StoredLogin(
            url=session.url,
            user=user,
            token=session.token,
            tls_ca=None if authorities is None else str(authorities),
        ), me.role


def _read_password() -> str:
    """Prompt for the password. If standard input is not a terminal, read its first line as the password."""
    if sys.stdin.isatty():
        typed: str = click.prompt("Password", type=TEXT, hide_input=True, err=True)
        return typed
    if line := sys.stdin.readline().rstrip("\r\n"):
        return parse_text(line, "password")
    raise click.UsageError("No password given, and no terminal to prompt for it: set MESHFLEET_PASSWORD.")
