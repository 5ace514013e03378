"""`meshfleet healthcheck`: ask the service on this machine whether it is ready."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import click
import httpx
import msgspec
from msgspec.structs import replace

from meshfleet.cli.output import json_option, print_result
from meshfleet.cli.settings_options import load_valid_settings, settings_options
from meshfleet.protocol.decoders import get_decoder
from meshfleet.rest.operations import NotReadyReply
from meshfleet.rest.paths import READINESS_PATH
from meshfleet.tls import create_pinned_context

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.settings import Settings

_TIMEOUT_SECONDS: Final = 10.0
"""Maximum seconds to wait for each part of the response."""


@click.command()
@settings_options("http", "tls-cert", "tls-key")
@json_option
def healthcheck(*, config: Path | None, as_json: bool, **flags: str | None) -> None:
    """Check whether the service on this machine is ready: exit with 0 if it is, else with 1.

    The address to check comes from the same settings as for serve. If the service is not ready, the reasons
    are printed.
    """
    settings = load_valid_settings(config, flags)
    if not settings.http.port:
        raise click.ClickException("http has port 0, so the port of the service is unknown: set a port.")
    reasons = _list_reasons(settings)
    status = "unavailable" if reasons else "ready"
    print_result(
        {"status": status, "reasons": reasons}, "\n".join(reasons) or "The service is ready.", as_json=as_json
    )
    if reasons:
        raise click.exceptions.Exit(1)


def _list_reasons(settings: Settings) -> list[str]:
    """Ask the service whether it is ready. Return the reasons why not; an empty list if it is ready."""
    url = replace(settings, http=settings.http.local).listen_url
    verify = True if settings.tls_cert is None else create_pinned_context(settings.tls_cert)
    try:
        # The service is on this machine: never ask a proxy of the environment.
        with httpx.Client(verify=verify, trust_env=False, timeout=_TIMEOUT_SECONDS) as client:
            response = client.get(f"{url}{READINESS_PATH}")
    except httpx.HTTPError as exc:
        return [f"{url} does not respond: {str(exc) or type(exc).__name__}"]
    if response.status_code == HTTPStatus.OK:
        return []
    try:
        return [each.text for each in get_decoder(NotReadyReply).decode(response.content).reasons]
    except msgspec.MsgspecError:
        return [f"{url} responds with HTTP status {response.status_code}"]
