"""`meshfleet login`: who talks to a service from now on."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from meshfleet.cli.options import TEXT, authorities_option, read_text
from meshfleet.cli.remote.arguments import USERNAME
from meshfleet.cli.remote.printing import answer, json_option
from meshfleet.cli.remote.stored_login import StoredLogin, keep_login, login_file
from meshfleet.client import Fleet

if TYPE_CHECKING:
    from pathlib import Path


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
@authorities_option
@json_option
def login(url: str, user: str, password: str | None, tls_ca: Path | None, *, as_json: bool) -> None:
    """Log in at a service, for all commands that follow; the password is not kept."""
    authorities = None if tls_ca is None else tls_ca.absolute()
    stored, role = asyncio.run(_log_in(url, user, password or _asked(), authorities))
    keep_login(stored)
    told = {"url": stored.url, "username": stored.user, "role": role, "file": str(login_file())}
    answer(told, f"Logged in at {stored.url} as {stored.user} ({role}).", as_json=as_json)


async def _log_in(url: str, user: str, password: str, authorities: Path | None) -> tuple[StoredLogin, str]:
    async with Fleet(url, user=user, password=password, tls_ca=authorities) as fleet:
        session, me = await fleet.log_in(), await fleet.me()
        return StoredLogin(
            url=session.url,
            user=user,
            token=session.token,
            tls_ca=None if authorities is None else str(authorities),
        ), me.role


def _asked() -> str:
    """From the terminal, where it is not shown; or the first line from a program."""
    if sys.stdin.isatty():
        typed: str = click.prompt("Password", type=TEXT, hide_input=True, err=True)
        return typed
    if line := sys.stdin.readline().rstrip("\r\n"):
        return read_text(line, "password")
    raise click.UsageError("There is no password, and no terminal to ask for it: set MESHFLEET_PASSWORD.")
