"""Prints the findings of `doctor` and `upgrade-check`: a line for each check, and the next command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli.output import print_json
from meshfleet.cli.terminal import to_printable
from meshfleet.service.doctor.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meshfleet.errors.startup import WrongSettings

_CERTIFICATE_SETTINGS: Final = ("tls-cert", "tls-key", "TLS_CERT", "TLS_KEY")


def build_settings_findings(exc: WrongSettings) -> Iterator[Finding]:
    """Yield a finding for each fault in the settings."""
    for origin, message in exc.faults:
        check = "certificate" if origin.endswith(_CERTIFICATE_SETTINGS) else "settings"
        yield Finding(Level.FAIL, check, f"{origin}: {message}", "meshfleet serve --help")


def print_findings(findings: Iterable[Finding], *, as_json: bool) -> None:
    """Print each finding as soon as it is found. At the end, exit with code 1 if a check has failed."""
    is_failed = False
    for finding in findings:
        is_failed |= finding.level is Level.FAIL
        if as_json:
            print_json(finding)
        else:
            _print_finding(finding)
    if is_failed:
        click.get_current_context().exit(1)


def _print_finding(finding: Finding) -> None:
    click.echo(to_printable(f"{finding.level:<6}{finding.check:<20}{finding.text}"))
    if finding.next_command is not None:
        click.echo(to_printable(f"      -> {finding.next_command}"))
