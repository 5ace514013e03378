"""`meshfleet reload`: make the service read its settings again."""

from __future__ import annotations

import click

from meshfleet.cli.output import json_option, print_result
from meshfleet.cli.service_access import call_service


@click.command()
@json_option
def reload(*, as_json: bool) -> None:
    """Make the service read its settings again. Needs the role admin.

    Print which changes are in use now, and which need a restart. If the new settings are invalid, nothing
    changes.
    """
    result = call_service(lambda fleet: fleet.operations.reload())
    sentences = []
    if result.applied:
        sentences.append(f"In use now: {', '.join(result.applied)}.")
    if result.needs_restart:
        sentences.append(f"Restart the service for: {', '.join(result.needs_restart)}.")
    print_result(result, " ".join(sentences) or "No setting has changed.", as_json=as_json)
