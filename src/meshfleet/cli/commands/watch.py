"""`meshfleet watch`: print live reports of devices, received from a service or an MQTT broker."""

from __future__ import annotations

import asyncio
import logging
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
from meshfleet.rest.live import (
    LiveHeartbeat,
    LiveLink,
    LiveParentChange,
    LivePosition,
    LiveSample,
    LiveZoneChange,
    Resync,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from meshfleet.client import EventType, Report
    from meshfleet.protocol.ids import Mac

    _Reports = AsyncGenerator["LiveReport", None]


# --- Conversion of gateway reports to live events as the service sends them ---

LiveReport = LiveSample | LiveHeartbeat | LiveLink | LiveParentChange | LivePosition | LiveZoneChange


def to_live_report(report: Report) -> LiveReport:
    """Convert a report received over MQTT to the content of a live event, as the service would send it."""
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
    identifier = str(report.identifier)
    entry, is_raw = BUILTIN_CATALOGUE.find(identifier), not report.kind.is_decoded
    value = _get_or_none(body, "value")
    raw = value if is_raw else None
    decoded = (decode_raw_value(identifier, raw) if raw else None) or DecodedValue(None)
    return LiveSample(
        **common,
        identifier=entry.id if entry else identifier if is_raw else None,
        name=entry.name if entry else None if is_raw else identifier,
        seq=_get_or_none(body, "seq"),
        value=decoded.value if is_raw else value,
        raw=raw,
        ext=decoded.ext if is_raw else _get_or_none(body, "ext"),
        error=_get_or_none(body, "error"),
        error_ext=_get_or_none(body, "error_ext"),
        clock=None,
    )


def _get_or_none(body: Any, field: str) -> Any:
    """Return a field of a report body; None if the body does not have the field or the report omits it."""
    value = getattr(body, field, UNSET)
    return None if value is UNSET else value


# --- Filter and output ---


class LiveReportFilter(Struct, frozen=True, kw_only=True):
    """Filter of live reports by device, gateway, kind and identifier. An empty set matches all reports."""

    devices: frozenset[str]
    gateways: frozenset[str]
    kinds: frozenset[str]
    names: frozenset[str]
    """Names of identifiers; for an identifier that is not in the catalogue, its hex id."""

    def matches(self, report: LiveReport) -> bool:
        """Return whether the report matches: each set must be empty or contain the report's value."""
        return (
            (not self.devices or report.device in self.devices)
            and (not self.gateways or getattr(report, "gateway", None) in {None, *self.gateways})
            and (not self.kinds or get_kind(report) in self.kinds)
            and (not self.names or format_subject(report) in self.names)
        )


def get_kind(report: LiveReport) -> str:
    """Return the kind of a report, or the type of another event."""
    match report:
        case LiveParentChange():
            return "topology"
        case LivePosition():
            return "position"
        case LiveZoneChange():
            return "zone"
    return report.kind


def format_subject(report: LiveReport) -> str:
    """Return the name (or hex id) of a report's identifier; the kind if the report has no identifier."""
    if not isinstance(report, LiveSample):
        return get_kind(report)
    return report.name or find_identifier_name(report.identifier or "")


def print_report(report: LiveReport, *, as_json: bool) -> None:
    """Print a report on one line. Colors are used only on a terminal."""
    if as_json:
        print_json(report)
        return
    parts = (
        click.style(report.time, dim=True),
        report.device,
        click.style(f"{get_kind(report):<17}", fg=_COLORS.get(get_kind(report))),
        *_style_subject(report),
        to_printable(_format_content(report)),
    )
    click.echo("  ".join(filter(None, parts)))


def _style_subject(report: LiveReport) -> tuple[str, ...]:
    """Return a tuple with the report's identifier in bold; empty if the report has no identifier."""
    if not isinstance(report, LiveSample):
        return ()
    return (click.style(to_printable(format_subject(report)), bold=True),)


_COLORS = {"measurement": "green", "property": "cyan", "event": "yellow", "measurement-error": "red"}


def _format_content(report: LiveReport) -> str:
    match report:
        case LiveHeartbeat():
            return "fine" if not report.status else f"status {report.status}"
        case LiveLink():
            suffix = ", unreachable" if report.unreachable else ""
            return f"{report.rssi} dBm at {report.parent}{suffix}"
        case LiveParentChange():
            before = "" if report.previous is None else f", before {report.previous}"
            return f"parent {report.parent}{before}"
        case LivePosition():
            place = f"floor {report.floor} of {report.site} at x {report.x:.1f}, y {report.y:.1f}"
            return f"{place} (within {report.radius:.1f} m)"
        case LiveZoneChange():
            dwell = "" if report.dwell_seconds is None else f" after {report.dwell_seconds:.0f} s"
            return f"{report.change} {report.zone}{dwell}"
    return _format_sample(report)


def _format_sample(report: LiveSample) -> str:
    if report.error is not None:
        return format_sample_error(report)
    if report.value is None and not report.raw:
        return ""
    if report.value is None:
        return f"raw {report.raw}"
    return format_decoded_value(report.identifier or report.name, report.value) + format_ext(report.ext)


def print_notice(text: str) -> None:
    """Print a notice to standard error, so that standard output contains only reports."""
    click.echo(click.style(to_printable(text), dim=True), err=True)


def print_client_log() -> None:
    """Start printing the SDK's log messages, such as connects and disconnects, to standard error."""
    log = logging.getLogger("meshfleet")
    log.setLevel(logging.INFO)
    log.addHandler(_NoticeLogHandler())


class _NoticeLogHandler(logging.Handler):
    """Prints log messages to standard error; a repeated message of an MQTT connection is printed once."""

    _last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a log message, unless it repeats the last message of an MQTT connection."""
        if record.msg != self._last:
            print_notice(record.getMessage())
        self._last = record.msg if record.name.startswith("meshfleet.mqtt.client") else ""


_KINDS: Final = sorted({each.raw_kind.value for each in Kind})

_OTHER_TYPES: Final[tuple[EventType, ...]] = ("topology", "position", "zone")
"""Values of `--kind` for events that are no reports and only known to a service."""


@click.command()
@click.option(
    "--device",
    "devices",
    type=DEVICE,
    multiple=True,
    shell_complete=complete_devices,
    help="Show only reports of this device; repeatable.",
)
@click.option(
    "--gateway",
    "gateways",
    type=DEVICE,
    multiple=True,
    shell_complete=complete_gateways,
    help="Show only reports received through this gateway; repeatable.",
)
@click.option(
    "--kind",
    "kinds",
    type=click.Choice([*_KINDS, *_OTHER_TYPES]),
    multiple=True,
    help="Show only reports of this kind; repeatable. topology: devices that change their parent;"
    " position: estimated positions; zone: devices that enter or leave a zone.",
)
@click.option(
    "--identifier",
    "identifiers",
    type=IDENTIFIER,
    multiple=True,
    shell_complete=complete_identifiers,
    help="Show only reports of this property, measurement or event (name or hex id); repeatable.",
)
@click.option(
    "--seconds", type=NumberParamType(0, min_open=True), help="Stop after this many seconds of real time."
)
@click.option("--count", type=click.IntRange(1), help="Stop after this many reports.")
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
    route: RequestRoute,
    as_json: bool,
) -> None:
    """Show reports of devices as they arrive, until Ctrl-C. With --broker, no service is needed."""
    report_filter = LiveReportFilter(
        devices=frozenset(map(to_device_id, devices)),
        gateways=frozenset(gateways),
        kinds=frozenset(kinds),
        names=frozenset(map(find_identifier_name, identifiers)),
    )
    if route.broker is not None and (other := next((each for each in _OTHER_TYPES if each in kinds), None)):
        raise click.UsageError(f"--kind {other} needs a service, and cannot be used with --broker.")
    connected = asyncio.Event()
    reports = (
        _receive_from_service(_list_event_types(kinds), devices, gateways, connected)
        if route.broker is None
        else _receive_from_broker(route, devices, gateways, connected)
    )
    print_client_log()
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(
                _print_matching_reports(reports, report_filter, count=count, seconds=seconds, as_json=as_json)
            )
    except TimeoutError:
        if seconds is None:
            raise
        if not connected.is_set():
            raise click.ClickException(f"no connection within {seconds:g} s") from None


async def _print_matching_reports(
    reports: _Reports,
    report_filter: LiveReportFilter,
    *,
    count: int | None,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Print the reports that match the filter, until `count` reports are printed; without end if None.

    Raise `TimeoutError` after `seconds`, if not None.
    """
    remaining = count
    async with asyncio.timeout(seconds), aclosing(reports):
        async for report in reports:
            if report_filter.matches(report):
                print_report(report, as_json=as_json)
                remaining = None if remaining is None else remaining - 1
            if remaining == 0:
                return


def _list_event_types(kinds: tuple[str, ...]) -> list[EventType]:
    """Return the types of live events that the option `--kind` selects."""
    types = [each for each in _OTHER_TYPES if each in kinds]
    return types if types and set(kinds) <= set(_OTHER_TYPES) else [*types, "report"]


async def _receive_from_service(
    types: list[EventType],
    devices: tuple[Mac, ...],
    gateways: tuple[Mac, ...],
    connected: asyncio.Event,
) -> _Reports:
    """Yield the live reports of the service. `connected` is set once the service accepts the login."""
    async with open_fleet() as fleet, aclosing(fleet.live(types, devices, gateways)) as events:
        await fleet.me()
        connected.set()
        async for event in events:
            match event.data:
                case LiveSample() | LiveHeartbeat() | LiveLink() as report:
                    yield report
                case LiveParentChange() | LivePosition() | LiveZoneChange() as report:
                    yield report
                case Resync(reason=reason):
                    print_notice(f"some reports are missing: {reason}")


async def _receive_from_broker(
    route: RequestRoute, devices: tuple[Mac, ...], gateways: tuple[Mac, ...], connected: asyncio.Event
) -> _Reports:
    """Yield the reports published at a broker. `connected` is set once the broker accepts the connection."""
    device = devices[0] if len(devices) == 1 else None
    gateway = gateways[0] if len(gateways) == 1 else None
    async with open_mesh(route) as mesh, aclosing(mesh.reports(gateway=gateway, device=device)) as reports:
        connected.set()
        async for report in reports:
            yield to_live_report(report)
