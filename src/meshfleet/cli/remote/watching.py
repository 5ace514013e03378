"""Live reports as lines, and which of them somebody wants to see."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from meshfleet.cli.remote.printing import print_json
from meshfleet.cli.remote.values import error_text, ext_text, name_of, value_text
from meshfleet.cli.terminal import printable
from meshfleet.wire.rest import LiveHeartbeat, LiveLink

if TYPE_CHECKING:
    from meshfleet.cli.remote.heard import Live


class Wanted(Struct, frozen=True, kw_only=True):
    """Which reports somebody wants to see; of each filter any value, and without one anything."""

    devices: frozenset[str]
    gateways: frozenset[str]
    kinds: frozenset[str]
    names: frozenset[str]
    """Of identifiers; those that the catalogue does not know, in hex."""

    def has(self, report: Live) -> bool:
        """Whether it is one of those."""
        return (
            (not self.devices or report.device in self.devices)
            and (not self.gateways or report.gateway in self.gateways)
            and (not self.kinds or report.kind in self.kinds)
            and (not self.names or subject(report) in self.names)
        )


def subject(report: Live) -> str:
    """What is reported: the identifier by its name, or the kind where there is none."""
    if isinstance(report, LiveHeartbeat | LiveLink):
        return report.kind
    return report.name or name_of(report.identifier or "")


def print_report(report: Live, *, as_json: bool) -> None:
    """Print a report on one line; with colours only on a terminal."""
    if as_json:
        print_json(report)
        return
    parts = (
        click.style(report.time, dim=True),
        report.device,
        click.style(f"{report.kind:<17}", fg=_COLOURS.get(report.kind)),
        *_name(report),
        printable(_told(report)),
    )
    click.echo("  ".join(filter(None, parts)))


def _name(report: Live) -> tuple[str, ...]:
    """The kind of a report without an identifier is its name already."""
    if isinstance(report, LiveHeartbeat | LiveLink):
        return ()
    return (click.style(printable(subject(report)), bold=True),)


_COLOURS = {"measurement": "green", "property": "cyan", "event": "yellow", "measurement-error": "red"}


def _told(report: Live) -> str:
    match report:
        case LiveHeartbeat():
            return "fine" if not report.status else f"status {report.status}"
        case LiveLink():
            reach = ", unreachable" if report.unreachable else ""
            return f"{report.rssi} dBm at {report.parent}{reach}"
    if report.error is not None:
        return error_text(report)
    if report.value is None and not report.raw:
        return ""
    if report.value is None:
        return f"raw {report.raw}"
    return value_text(report.identifier or report.name, report.value) + ext_text(report.ext)


def notice(words: str) -> None:
    """Tell people what is no report, beside what programs read."""
    click.echo(click.style(printable(words), dim=True), err=True)


def tell_connections() -> None:
    """Tell from now on when connections come and go, which the SDK writes into the log."""
    log = logging.getLogger("meshfleet")
    log.setLevel(logging.INFO)
    log.addHandler(_Notices())


class _Notices(logging.Handler):
    """Log records as notices; what several connections say of the same thing counts once."""

    _last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Tell one."""
        if record.msg != self._last:
            notice(record.getMessage())
        self._last = record.msg if record.name.startswith("meshfleet.link") else ""
