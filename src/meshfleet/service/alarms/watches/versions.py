"""Watch of firmware versions: devices run an older version than the newest released for their model.

A device counts if a job would update it, so also its hardware version and its present version must fit. The
versions of a model are found by steps through an index, and only some hundred devices of each version are
looked at: the number of devices in the fleet does not matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meshfleet.db import bulk
from meshfleet.protocol.diagnostics import FirmwareType
from meshfleet.protocol.ids import Version, format_model_number
from meshfleet.protocol.products import find_product_name
from meshfleet.rest.alarms import AlarmAction
from meshfleet.service.alarms.rules import DAY_MS, Rule, Severity
from meshfleet.service.alarms.watches.watch import Fault, RuleThreshold, Watch
from meshfleet.service.alarms.wording import count
from meshfleet.service.jobs.compatibility import (
    DeviceFacts,
    FirmwareRequirement,
    find_exclusion,
    parse_running_version,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection

    from meshfleet.service.alarms.watches.watch import Sight, WatchedAlarm

_HOUR_MS: Final = 3_600_000
_DAYS_TO_UPDATE: Final = RuleThreshold("days", 14, 1, 365)
"""Time after the release of a version in which devices need not run it."""
_MAX_DEVICES: Final = 500

_SELECT_RELEASED: Final = """
    SELECT model, id, version, hardware, min_version, type, released_at FROM firmware
    WHERE state = 'released' AND released_at IS NOT NULL
"""
_SELECT_BUSY_MODELS: Final = """
    SELECT DISTINCT firmware.model FROM job JOIN firmware ON firmware.id = job.firmware
    WHERE job.finished_at IS NULL
"""
SELECT_VERSIONS: Final = """
    WITH RECURSIVE found(version) AS (
        SELECT (SELECT min(firmware) FROM device WHERE model = ?)
        UNION ALL
        SELECT (SELECT min(firmware) FROM device WHERE model = ? AND firmware > found.version)
        FROM found WHERE found.version IS NOT NULL
    )
    SELECT version FROM found WHERE version IS NOT NULL
"""
"""One step through the index (model, firmware) for each version: DISTINCT would read all devices."""
SELECT_DEVICES: Final = """
    SELECT hardware, beta, count(*)
    FROM (SELECT hardware, beta FROM device WHERE model = ? AND firmware = ? LIMIT ?) AS looked_at
    GROUP BY hardware, beta
"""


class _Release(NamedTuple):
    """Released firmware."""

    id: str
    requirement: FirmwareRequirement
    released_at: int


def _find(sight: Sight) -> Iterator[Fault]:
    days = int(sight.thresholds[_DAYS_TO_UPDATE.name])
    busy = {row[0] for row in bulk.query_rows(sight.connection, _SELECT_BUSY_MODELS, ())}
    for model, release in _load_newest_releases(sight.connection).items():
        if model in busy or sight.now - release.released_at < days * DAY_MS:
            continue
        devices = _count_older(sight.connection, release.requirement)
        if devices:
            yield Fault(
                model,
                since=sight.now,
                cause="older-firmware",
                scope=f"model:{model}",
                severity=Severity.INFO,
                facts={
                    "model": format_model_number(model),
                    "name": find_product_name(format_model_number(model)),
                    "firmware": release.id,
                    "version": str(release.requirement.version),
                    "devices": min(devices, _MAX_DEVICES),
                    "more": devices > _MAX_DEVICES,
                    "days": days,
                },
            )


def _load_newest_releases(connection: Connection) -> dict[int, _Release]:
    """Load the newest released version of each model. A beta is not for all devices."""
    newest: dict[int, _Release] = {}
    for model, number, text, hardware, min_version, kind, released_at in bulk.query_rows(
        connection, _SELECT_RELEASED, ()
    ):
        version = Version.parse(text)
        if version.beta or (model in newest and newest[model].requirement.version >= version):
            continue
        requirement = FirmwareRequirement(
            model=model,
            version=version,
            hardware=frozenset(msgspec.json.decode(hardware or "[]", type=list[str])),
            min_version=None if min_version is None else Version.parse(min_version),
            type=FirmwareType(kind),
        )
        newest[model] = _Release(number, requirement, released_at)
    return newest


def _count_older(connection: Connection, requirement: FirmwareRequirement) -> int:
    """Count the devices that a job would update; no more than are told."""
    found = 0
    model = requirement.model
    for (text,) in bulk.query_rows(connection, SELECT_VERSIONS, (model, model)):
        if found > _MAX_DEVICES:
            break
        groups = bulk.query_rows(connection, SELECT_DEVICES, (model, text, _MAX_DEVICES + 1))
        for hardware, beta, number in groups:
            device = DeviceFacts(model, hardware, text, beta, is_gateway=True)
            is_known = parse_running_version(device) is not None
            found += number if is_known and find_exclusion(device, requirement) is None else 0
    return found


def _describe(alarm: WatchedAlarm) -> str:
    facts = alarm.facts
    name, version = facts["name"] or f"model {facts['model']}", facts["version"]
    if alarm.is_over:
        return f"Devices {name} run {version} or newer, or an update to it is under way."
    devices = count(facts["devices"], "device")
    verb = "runs" if facts["devices"] == 1 else "run"
    number = f"More than {devices}" if facts["more"] else devices
    released = f"which is released for {count(facts.get('days', _DAYS_TO_UPDATE.default), 'day')} or longer"
    return f"{number} {name} {verb} older firmware than {version}, {released}."


def _choose_action(facts: Mapping[str, Any]) -> AlarmAction:
    return AlarmAction(code="roll-out", text="Update them.", href=f"/firmware/{facts['firmware']}")


VERSION_SKEW: Final = Watch(
    Rule.VERSION_SKEW,
    interval=_HOUR_MS,
    wait=DAY_MS,
    back=0,
    find=_find,
    describe=_describe,
    choose_action=_choose_action,
    thresholds=(_DAYS_TO_UPDATE,),
)
