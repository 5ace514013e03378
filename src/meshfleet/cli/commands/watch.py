"""`meshfleet watch`: live reports."""

from __future__ import annotations

import asyncio
import logging
from asyncio import wait_for
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import UNSET, Struct

from meshfleet.cli.arguments import DEVICE, IDENTIFIER
from meshfleet.cli.completers import complete_devices, complete_gateways, complete_identifiers
from meshfleet.cli.device_requests import RequestRoute, broker_options, open_mesh
from meshfleet.cli.options import NumberParamType
from meshfleet.cli.output import json_option, print_json
from meshfleet.cli.service_access import open_fleet
from meshfleet.cli.terminal import to_printable
from meshfleet.cli.value_format import (
    decode_raw_value,
    find_identifier_name,
    format_decoded_value,
    format_ext,
    format_sample_error,
)
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE, DecodedValue
from meshfleet.protocol.ids import to_device_id
from meshfleet.protocol.times import format_time
from meshfleet.rest import LiveHeartbeat, LiveLink, LiveSample, Resync

if TYPE_CHECKING:
    from meshfleet.client import Report


# Reports straight from a gateway, in the words of the service's live events.

LiveReport = LiveSample | LiveHeartbeat | LiveLink


def to_live_report(report: Report) -> LiveReport:
    """A report as the service would tell it."""
    body: Any = report.body
    common: Any = {
        "device": to_device_id(report.device),
        "gateway": report.gateway,
        "time": format_time(body.time),
        "kind": report.kind.raw_kind.value,
    }
    match report.kind:
        case Kind.HEARTBEAT:
            return LiveHeartbeat(**common, status=body.status)
        case Kind.RSSI | Kind.DFU:
            unreachable = report.kind is Kind.RSSI and body.unreachable
            return LiveLink(**common, parent=body.parent, rssi=body.rssi, unreachable=unreachable)
    return _to_live_sample(report, body, common)


def _to_live_sample(report: Report, body: Any, common: Any) -> LiveSample:
    word = str(report.identifier)
    entry, is_hex = BUILTIN_CATALOGUE.find(word), not report.kind.is_decoded
    told = _get_or_none(body, "value")
    raw = told if is_hex else None
    meant = (decode_raw_value(word, raw) if raw else None) or DecodedValue(None)
    return LiveSample(
        **common,
        identifier=entry.id if entry else word if is_hex else None,
        name=entry.name if entry else None if is_hex else word,
        seq=_get_or_none(body, "seq"),
        value=meant.value if is_hex else told,
        raw=raw,
        ext=meant.ext if is_hex else _get_or_none(body, "ext"),
        error=_get_or_none(body, "error"),
        error_ext=_get_or_none(body, "error_ext"),
        clock=None,
    )


def _get_or_none(body: Any, field: str) -> Any:
    """A field that this kind may not have, or that was left out."""
    value = getattr(body, field, UNSET)
    return None if value is UNSET else value


# Live reports as lines, and which of them somebody wants to see.


class LiveReportFilter(Struct, frozen=True, kw_only=True):
    """Which reports somebody wants to see; of each filter any value, and without one anything."""

    devices: frozenset[str]
    gateways: frozenset[str]
    kinds: frozenset[str]
    names: frozenset[str]
    """Of identifiers; those that the catalogue does not know, in hex."""

    def matches(self, report: LiveReport) -> bool:
        """Whether it is one of those."""
        return (
            (not self.devices or report.device in self.devices)
            and (not self.gateways or report.gateway in self.gateways)
            and (not self.kinds or report.kind in self.kinds)
            and (not self.names or format_subject(report) in self.names)
        )


def format_subject(report: LiveReport) -> str:
    """What is reported: the identifier by its name, or the kind where there is none."""
    if isinstance(report, LiveHeartbeat | LiveLink):
        return report.kind
    return report.name or find_identifier_name(report.identifier or "")


def print_report(report: LiveReport, *, as_json: bool) -> None:
    """Print a report on one line; with colours only on a terminal."""
    if as_json:
        print_json(report)
        return
    parts = (
        click.style(report.time, dim=True),
        report.device,
        click.style(f"{report.kind:<17}", fg=_COLORS.get(report.kind)),
        *_style_subject(report),
        to_printable(_format_content(report)),
    )
    click.echo("  ".join(filter(None, parts)))


def _style_subject(report: LiveReport) -> tuple[str, ...]:
    """The kind of a report without an identifier is its name already."""
    if isinstance(report, LiveHeartbeat | LiveLink):
        return ()
    return (click.style(to_printable(format_subject(report)), bold=True),)


_COLORS = {"measurement": "green", "property": "cyan", "event": "yellow", "measurement-error": "red"}


def _format_content(report: LiveReport) -> str:
    match report:
        case LiveHeartbeat():
            return "fine" if not report.status else f"status {report.status}"
        case LiveLink():
            reach = ", unreachable" if report.unreachable else ""
            return f"{report.rssi} dBm at {report.parent}{reach}"
    if report.error is not None:
        return format_sample_error(report)
    if report.value is None and not report.raw:
        return ""
    if report.value is None:
        return f"raw {report.raw}"
    return format_decoded_value(report.identifier or report.name, report.value) + format_ext(report.ext)


def print_notice(text: str) -> None:
    """Tell people what is no report, beside what programs read."""
    click.echo(click.style(to_printable(text), dim=True), err=True)


def print_connection_changes() -> None:
    """Tell from now on when connections come and go, which the SDK writes into the log."""
    log = logging.getLogger("meshfleet")
    log.setLevel(logging.INFO)
    log.addHandler(_NoticeHandler())


class _NoticeHandler(logging.Handler):
    """Log records as notices; what several connections say of the same thing counts once."""

    _last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Tell one."""
        if record.msg != self._last:
            print_notice(record.getMessage())
        self._last = record.msg if record.name.startswith("meshfleet.mqtt.client") else ""


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from meshfleet.protocol.ids import Mac

    _Reports = AsyncGenerator[LiveReport, None]

_KINDS: Final = sorted({each.raw_kind.value for each in Kind})


@click.command()
@click.option("--device", "devices", type=DEVICE, multiple=True, shell_complete=complete_devices)
@click.option("--gateway", "gateways", type=DEVICE, multiple=True, shell_complete=complete_gateways)
@click.option("--kind", "kinds", type=click.Choice(_KINDS), multiple=True)
@click.option(
    "--identifier",
    "identifiers",
    type=IDENTIFIER,
    multiple=True,
    shell_complete=complete_identifiers,
    help="By name, or its id in hex. All filters can be repeated.",
)
@click.option("--seconds", type=NumberParamType(0, min_open=True), help="Stop after so long.")
@click.option("--count", type=click.IntRange(1), help="Stop after so many reports.")
@broker_options
@json_option
def watch(  # noqa: PLR0913 # one for each option
    *,
    devices: tuple[Mac, ...],
    gateways: tuple[Mac, ...],
    kinds: tuple[str, ...],
    identifiers: tuple[str, ...],
    seconds: float | None,
    count: int | None,
    broker: str | None,
    topic_prefix: str,
    tls_ca: Path | None,
    as_json: bool,
) -> None:
    """Show reports as they come, one line each, until Ctrl-C; with --broker without any service."""
    wanted = LiveReportFilter(
        devices=frozenset(map(to_device_id, devices)),
        gateways=frozenset(gateways),
        kinds=frozenset(kinds),
        names=frozenset(map(find_identifier_name, identifiers)),
    )
    way, inside = RequestRoute.from_options(None, broker, topic_prefix, tls_ca), asyncio.Event()
    reports = (
        _reports_of_service(devices, gateways, inside)
        if broker is None
        else _reports_of_broker(way, devices, gateways, inside)
    )
    print_connection_changes()
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(wait_for(_print_matching(reports, wanted, count=count, as_json=as_json), seconds))
    except TimeoutError:
        if seconds is None:
            raise
        if not inside.is_set():
            raise click.ClickException(f"nobody answered within {seconds:g} s") from None


async def _print_matching(
    reports: _Reports, report_filter: LiveReportFilter, *, count: int | None, as_json: bool
) -> None:
    """Print what is wanted, until there is enough."""
    left = count
    async with aclosing(reports):
        async for report in reports:
            if report_filter.matches(report):
                print_report(report, as_json=as_json)
                left = None if left is None else left - 1
            if left == 0:
                return


async def _reports_of_service(
    devices: tuple[Mac, ...], gateways: tuple[Mac, ...], connected: asyncio.Event
) -> _Reports:
    """Reports of a service; `inside` is set as soon as it lets us in."""
    async with open_fleet() as fleet, aclosing(fleet.live("report", devices, gateways)) as events:
        await fleet.me()
        connected.set()
        async for event in events:
            match event.data:
                case LiveSample() | LiveHeartbeat() | LiveLink() as report:
                    yield report
                case Resync(reason=reason):
                    print_notice(f"some reports were missed: {reason}")


async def _reports_of_broker(
    route: RequestRoute, devices: tuple[Mac, ...], gateways: tuple[Mac, ...], connected: asyncio.Event
) -> _Reports:
    """Reports at a broker; `inside` is set as soon as it lets us in."""
    device = devices[0] if len(devices) == 1 else None
    gateway = gateways[0] if len(gateways) == 1 else None
    async with open_mesh(route) as mesh, aclosing(mesh.reports(gateway=gateway, device=device)) as reports:
        connected.set()
        async for report in reports:
            yield to_live_report(report)
