"""`meshfleet logout`: the end of a login."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from meshfleet.cli.remote.printing import answer, json_option
from meshfleet.cli.remote.stored_login import StoredLogin, drop_login, read_login
from meshfleet.cli.terminal import printable
from meshfleet.client import Fleet
from meshfleet.errors import FleetError, NotLoggedIn


@click.command()
@json_option
def logout(*, as_json: bool) -> None:
    """End the login, at the service and here."""
    try:
        stored = read_login()
    except click.ClickException as exc:  # then nobody knows whom to tell, and it must go all the same
        drop_login()
        raise click.ClickException(
            f"the login is removed here, but no service was told: {exc.message}"
        ) from exc
    if stored is None:
        answer({"loggedOut": False}, "Nobody is logged in.", as_json=as_json)
        return
    try:
        asyncio.run(_log_out(stored))
    except NotLoggedIn:
        pass  # it ended before
    except FleetError as exc:
        drop_login()
        reason = (
            f"the login is removed here, but the service was not told, and its token ends by itself: {exc}"
        )
        raise click.ClickException(printable(reason)) from exc
    drop_login()
    told = {"loggedOut": True, "url": stored.url, "username": stored.user}
    answer(told, f"Logged out at {stored.url}.", as_json=as_json)


async def _log_out(stored: StoredLogin) -> None:
    authorities = stored.tls_ca and Path(stored.tls_ca)
    async with Fleet(stored.url, token=stored.token, tls_ca=authorities or None) as fleet:
        await fleet.log_out()
