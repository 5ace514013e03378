"""`meshfleet login`: who talks to a service from now on."""

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

# `meshfleet logout`: the end of a login.


@click.command()
@json_option
def logout(*, as_json: bool) -> None:
    """End the login, at the service and here."""
    try:
        stored = read_login()
    except click.ClickException as exc:  # then nobody knows whom to tell, and it must go all the same
        delete_login()
        raise click.ClickException(
            f"the login is removed here, but no service was told: {exc.message}"
        ) from exc
    if stored is None:
        print_result({"loggedOut": False}, "Nobody is logged in.", as_json=as_json)
        return
    try:
        asyncio.run(_log_out(stored))
    except NotLoggedIn:
        pass  # it ended before
    except FleetError as exc:
        delete_login()
        reason = (
            f"the login is removed here, but the service was not told, and its token ends by itself: {exc}"
        )
        raise click.ClickException(to_printable(reason)) from exc
    delete_login()
    told = {"loggedOut": True, "url": stored.url, "username": stored.user}
    print_result(told, f"Logged out at {stored.url}.", as_json=as_json)


async def _log_out(stored: StoredLogin) -> None:
    authorities = stored.tls_ca and Path(stored.tls_ca)
    async with Fleet(stored.url, token=stored.token, tls_ca=authorities or None) as fleet:
        await fleet.log_out()


@click.command()
@click.option(
    "--url", type=TEXT, envvar="MESHFLEET_URL", show_envvar=True, required=True, help="Of the service."
)
@click.option("--user", type=USERNAME, required=True, help="Who logs in.")
@click.option(
    "--password",
    type=TEXT,
    envvar="MESHFLEET_PASSWORD",
    show_envvar=True,
    help="Asked for if it is missing.",
)
@tls_ca_option
@json_option
def login(url: str, user: str, password: str | None, tls_ca: Path | None, *, as_json: bool) -> None:
    """Log in at a service, for all commands that follow; the password is not kept."""
    authorities = None if tls_ca is None else tls_ca.absolute()
    stored, role = asyncio.run(_log_in(url, user, password or _read_password(), authorities))
    save_login(stored)
    told = {"url": stored.url, "username": stored.user, "role": role, "file": str(login_path())}
    print_result(told, f"Logged in at {stored.url} as {stored.user} ({role}).", as_json=as_json)


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
    """From the terminal, where it is not shown; or the first line from a program."""
    if sys.stdin.isatty():
        typed: str = click.prompt("Password", type=TEXT, hide_input=True, err=True)
        return typed
    if line := sys.stdin.readline().rstrip("\r\n"):
        return parse_text(line, "password")
    raise click.UsageError("There is no password, and no terminal to ask for it: set MESHFLEET_PASSWORD.")
