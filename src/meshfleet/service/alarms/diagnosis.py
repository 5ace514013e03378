"""Diagnosis of a device: what happened, how sure that is, the evidence, and one action.

Alarms, `GET /api/v1/devices/{id}/diagnosis` and `meshfleet diagnose` use the same function. The causes are
looked at in a fixed order, the first one that applies is the answer: a device behind a gateway that is
offline is cut off, whatever its battery.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition
from meshfleet.errors import NotFound
from meshfleet.protocol.ids import mac_from_int, to_device_id
from meshfleet.protocol.times import format_millis
from meshfleet.rest.alarms import AlarmAction, Certainty, Diagnosis, DiagnosisFact
from meshfleet.service.alarms.rules import LOW_BATTERY, WEAK_RSSI
from meshfleet.service.alarms.wording import count, format_duration
from meshfleet.service.presence.changes import PresenceCause

if TYPE_CHECKING:
    from sqlalchemy import Connection

_SELECT_FACTS: Final = """
    SELECT device.id, device.name, device.connected, device.connected_at, device_state.reported_at,
        device_state.boot_mode, device_state.battery, device_state.battery_at, device_state.rssi,
        device_state.radio_at, device.gateway, upstream.name, upstream.connected, upstream.connected_at,
        claim.device IS NOT NULL
    FROM device
    LEFT JOIN device_state ON device_state.device = device.id
    LEFT JOIN device AS upstream ON upstream.id = device.gateway AND upstream.id <> device.id
    LEFT JOIN gateway AS claim ON claim.device = device.id
    WHERE device.id = ?
"""
_SELECT_UPDATE: Final = (
    f"SELECT job FROM execution WHERE device = ? AND {active_condition()}"  # noqa: S608 # constants only
    " AND state IN ('APPLYING', 'CONFIRMING') AND updated_at > ? LIMIT 1"
)
_SELECT_RELAY: Final = """
    SELECT relay.id, relay.name, root.since FROM alarm_condition AS member
    JOIN alarm_condition AS root ON root.alarm = member.alarm AND root.rule = 'relay-lost'
    JOIN device AS relay ON relay.id = root.subject
    WHERE member.rule = 'device-offline' AND member.subject = ? AND root.subject <> member.subject
"""
_SELECT_LAST_CAUSE: Final = "SELECT cause FROM connectivity WHERE device = ? ORDER BY id DESC LIMIT 1"
_COUNT_OTHERS: Final = "SELECT count(*) FROM device WHERE gateway = ? AND connected AND id <> gateway"


class DeviceCause(StrEnum):
    """Why a device is in its present state. The names of the last four are causes of alarms, too."""

    ONLINE = "online"
    UPDATING = "updating"
    DFU_MODE = "dfu-mode"
    NEVER_REPORTED = "never-reported"
    NO_CONNECTION = "no-connection"
    """The device is a gateway."""
    GATEWAY_OFFLINE = "gateway-offline"
    RELAY_SILENT = "relay-silent"
    """An extender above it is lost."""
    BATTERY_EMPTY = "battery-empty"
    WEAK_SIGNAL = "weak-signal"
    NOT_BACK = "not-back"
    """Its gateway was offline and is back, but not the device."""
    NO_WARNING = "no-warning"


UPDATE_MS: Final = 60 * 60_000
"""Milliseconds for which an update explains that a device is silent: it installs the image and restarts."""

EXPECTED_CAUSES: Final = frozenset({DeviceCause.ONLINE, DeviceCause.UPDATING, DeviceCause.DFU_MODE})
"""Causes that need no attention."""


class DeviceFacts(NamedTuple):
    """Stored facts about a device. Times are Unix times in milliseconds."""

    number: int
    name: str
    connected: bool
    changed_at: int
    """When the device connected or disconnected last."""
    reported_at: int | None
    boot_mode: str | None
    battery: int | None
    battery_at: int | None
    rssi: int | None
    radio_at: int | None
    gateway: int | None
    gateway_name: str | None
    is_gateway_connected: bool
    gateway_changed_at: int | None
    is_gateway: bool
    job: int | None = None
    """Job that updates the device now. A device that waits for its turn or its image is not silent."""
    lost_with_gateway: bool = False
    """Whether it was disconnected because its gateway was."""
    relay: int | None = None
    """Lost extender in whose alarm the device is."""
    relay_name: str = ""
    relay_since: int = 0
    """When that extender was lost."""


def load_facts(connection: Connection, number: int, now: int) -> DeviceFacts:
    """Load what is stored about a device. Raise `NotFound` if it does not exist."""
    rows = bulk.query_rows(connection, _SELECT_FACTS, (number,))
    if not rows:
        raise NotFound(f"device {to_device_id(mac_from_int(number))} not found")
    row = list(rows[0])
    for index in (2, 12, 14):
        row[index] = bool(row[index])
    facts = DeviceFacts(*row)
    updates = bulk.query_rows(connection, _SELECT_UPDATE, (number, now - UPDATE_MS))
    causes = bulk.query_rows(connection, _SELECT_LAST_CAUSE, (number,))
    relays = () if facts.connected else bulk.query_rows(connection, _SELECT_RELAY, (number,))
    if relays:
        facts = facts._replace(relay=relays[0][0], relay_name=relays[0][1], relay_since=relays[0][2])
    return facts._replace(
        job=updates[0][0] if updates else None,
        lost_with_gateway=bool(causes) and causes[0][0] == PresenceCause.GATEWAY,
    )


def find_cause(facts: DeviceFacts) -> DeviceCause:
    """Return the first cause that applies to a device."""
    gateway_changed_at = facts.gateway_changed_at or 0
    candidates = (
        (DeviceCause.ONLINE, facts.connected),
        (DeviceCause.NO_CONNECTION, facts.is_gateway),
        (DeviceCause.UPDATING, facts.job is not None),
        (DeviceCause.NEVER_REPORTED, facts.reported_at is None),
        (DeviceCause.DFU_MODE, facts.boot_mode == "dfu"),
        (DeviceCause.GATEWAY_OFFLINE, facts.gateway is not None and not facts.is_gateway_connected),
        (DeviceCause.RELAY_SILENT, facts.relay is not None),
        (DeviceCause.BATTERY_EMPTY, facts.battery is not None and facts.battery <= LOW_BATTERY),
        (DeviceCause.WEAK_SIGNAL, facts.rssi is not None and facts.rssi < WEAK_RSSI),
        (DeviceCause.NOT_BACK, facts.lost_with_gateway and gateway_changed_at > facts.changed_at),
    )
    return next((cause for cause, applies in candidates if applies), DeviceCause.NO_WARNING)


def diagnose_device(connection: Connection, number: int, now: int) -> Diagnosis:
    """Say what is wrong with a device, if anything. Raise `NotFound` if it does not exist."""
    facts = load_facts(connection, number, now)
    cause = find_cause(facts)
    connected_others = bulk.query_rows(connection, _COUNT_OTHERS, (facts.gateway,))[0][0]
    sentence, certainty = _describe(facts, cause, connected_others, now)
    return Diagnosis(
        device=to_device_id(mac_from_int(number)),
        code=cause,
        sentence=sentence,
        explanation=_remove_beginning(sentence, facts, now),
        certainty=certainty,
        since=format_millis(facts.changed_at),
        evidence=list(_list_evidence(facts)),
        action=_choose_action(facts, cause),
    )


def _describe(
    facts: DeviceFacts, cause: DeviceCause, connected_others: int, now: int
) -> tuple[str, Certainty]:
    """Return a sentence, and how sure it is."""
    name, gateway = facts.name, facts.gateway_name or "its gateway"
    since = f"for {format_duration(now - facts.changed_at)}"
    relay_since = f"for {format_duration(now - facts.relay_since)}"
    offline = _format_offline(facts, now)
    others = count(connected_others, "other device")
    certain, likely = Certainty.CERTAIN, Certainty.LIKELY
    sentences: dict[DeviceCause, tuple[str, Certainty]] = {
        DeviceCause.ONLINE: (f"{name} is online.", certain),
        DeviceCause.NO_CONNECTION: (f"Gateway {name} has had no connection {since}.", certain),
        DeviceCause.UPDATING: (
            f"{name} is being updated by job-{facts.job}: it restarts, and is silent for a while.",
            likely,
        ),
        DeviceCause.DFU_MODE: (f"{name} waits in DFU mode for an update.", certain),
        DeviceCause.NEVER_REPORTED: (f"{name} has never reported.", certain),
        DeviceCause.GATEWAY_OFFLINE: (f"{name} is cut off: gateway {gateway} is offline.", certain),
        DeviceCause.RELAY_SILENT: (
            f"{name} is cut off with extender {facts.relay_name}, silent {relay_since}.",
            likely,
        ),
        DeviceCause.BATTERY_EMPTY: (
            f"{offline} The battery was at {facts.battery} % in its last report.",
            likely,
        ),
        DeviceCause.WEAK_SIGNAL: (f"{offline} Its signal was very weak: {facts.rssi} dBm.", likely),
        DeviceCause.NOT_BACK: (
            f"{offline} Gateway {gateway} was offline and is back; this device is not.",
            certain,
        ),
        DeviceCause.NO_WARNING: (
            f"{offline} It stopped without a warning; gateway {gateway} hears {others}.",
            Certainty.UNKNOWN,
        ),
    }
    return sentences[cause]


def _format_offline(facts: DeviceFacts, now: int) -> str:
    """Return the beginning of most sentences: for how long the device has been offline."""
    return f"{facts.name} has been offline for {format_duration(now - facts.changed_at)}."


def _remove_beginning(sentence: str, facts: DeviceFacts, now: int) -> str:
    """Return a sentence without what a client says itself that shows since when the device is offline."""
    rest = sentence.removeprefix(_format_offline(facts, now)).removeprefix(f"{facts.name} is cut off:")
    rest = rest.strip()
    return rest if rest == sentence else rest[:1].upper() + rest[1:]


def _list_evidence(facts: DeviceFacts) -> list[DiagnosisFact]:
    """List the facts that the diagnosis is based on, the newest first."""
    found: list[tuple[int | None, str]] = [
        (facts.changed_at, "connected" if facts.connected else "disconnected"),
        (facts.reported_at, "last report"),
        (facts.battery_at, f"battery {facts.battery} %"),
        (facts.radio_at, f"signal {facts.rssi} dBm"),
    ]
    if facts.gateway_name is not None:
        state = "connected" if facts.is_gateway_connected else "disconnected"
        found.append((facts.gateway_changed_at, f"gateway {facts.gateway_name} {state}"))
    if facts.relay is not None:
        found.append((facts.relay_since, f"extender {facts.relay_name} lost"))
    known: list[tuple[int, str]] = [(time, text) for time, text in found if time is not None]
    return [DiagnosisFact(time=format_millis(time), text=text) for time, text in sorted(known, reverse=True)]


def _choose_action(facts: DeviceFacts, cause: DeviceCause) -> AlarmAction | None:
    """Return what to do; None if nothing is to be done."""
    device = f"/devices/{to_device_id(mac_from_int(facts.number))}"
    gateway = "/gateways" if facts.gateway is None else f"/gateways/{mac_from_int(facts.gateway)}"
    relay = device if facts.relay is None else f"/devices/{to_device_id(mac_from_int(facts.relay))}"
    actions: dict[DeviceCause, tuple[str, str, str]] = {
        DeviceCause.UPDATING: ("show-job", "Follow the update.", f"/jobs/job-{facts.job}"),
        DeviceCause.NO_CONNECTION: (
            "check-gateway",
            "Check its power and network.",
            f"/gateways/{mac_from_int(facts.number)}",
        ),
        DeviceCause.GATEWAY_OFFLINE: ("check-gateway", "Check the gateway's power and network.", gateway),
        DeviceCause.RELAY_SILENT: ("check-relay", "Go to the extender and check its power.", relay),
        DeviceCause.BATTERY_EMPTY: ("replace-battery", "Replace the battery.", device),
        DeviceCause.WEAK_SIGNAL: ("improve-signal", "Move it, or add an extender.", device),
        DeviceCause.NOT_BACK: ("check-device", "Look at the device at its place.", device),
        DeviceCause.NO_WARNING: ("check-device", "Look at the device at its place.", device),
        DeviceCause.NEVER_REPORTED: ("check-gateway", "Check that a gateway is near.", "/gateways"),
    }
    if cause not in actions:
        return None
    code, text, href = actions[cause]
    return AlarmAction(code=code, text=text, href=href)
