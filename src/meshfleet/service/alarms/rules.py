"""Built-in rules: what they watch, how long a fault must last, and how long it must be gone."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

_SECOND_MS: Final = 1000
_MINUTE_MS: Final = 60 * _SECOND_MS
_HOUR_MS: Final = 60 * _MINUTE_MS

DAY_MS: Final = 24 * _HOUR_MS


class Rule(StrEnum):
    """Name of a rule, in the order in which due conditions are judged: causes before their consequences."""

    GATEWAYS_LOST = "gateways-lost"
    """Many gateways lost their connection at the same time: one cause above all of them."""
    GATEWAY_OFFLINE = "gateway-offline"
    """A claimed gateway has no MQTT connection."""
    GATEWAY_RETURN = "gateway-return"
    """A gateway is connected again: are its devices, too? This rule opens no alarm of its own."""
    RELAY_LOST = "relay-lost"
    """An extender is silent, and cuts off the devices behind it."""
    DEVICE_OFFLINE = "device-offline"
    """A device does not report although its gateway is connected."""
    RELAY_PROBE = "relay-probe"
    """An extender is asked whether it answers. This rule opens no alarm."""
    GATEWAY_UNSTABLE = "gateway-unstable"
    """A gateway loses its connection again and again."""
    DEVICE_UNSTABLE = "device-unstable"
    """A device at a fixed place comes and goes although its gateway is stable."""
    GATEWAY_NEVER_CONNECTED = "gateway-never-connected"
    """A gateway was claimed, but has never connected."""
    GATEWAY_CLOCK = "gateway-clock"
    """The clock of a gateway is wrong, so that the times of its reports are."""
    SERVICE_CLOCK = "service-clock"
    """The clocks of most gateways are wrong by the same amount: it is the clock of this machine."""
    REJECTS_RISING = "rejects-rising"
    """A gateway sends reports that cannot be read."""
    SAMPLES_LOST = "samples-lost"
    """Samples are missing, and are not expected any more."""
    BATTERY_LOW = "battery-low"
    """The battery of a device is low."""
    JOB_STOPPED = "job-stopped"
    """A firmware update has paused or canceled itself."""
    JOB_ENDED_BADLY = "job-ended-badly"
    """A firmware update has ended, and not all devices are updated."""
    JOB_STUCK = "job-stuck"
    """A firmware update is under way, but nothing moves."""
    CHANNEL_FAILING = "channel-failing"
    """Messages about alarms cannot be delivered."""
    DATABASE = "database"
    """The database cannot be used. This alarm is written when it can be used again."""
    BROKER = "broker"
    """The MQTT broker does not deliver reports."""
    INGEST_LAG = "ingest-lag"
    """Reports wait too long until they are stored."""
    DISK = "disk"
    """The disk of the data is nearly full, or will be full soon."""
    CERTIFICATE = "certificate"
    """The TLS certificate ends soon, or has ended."""
    BACKUP_OLD = "backup-old"
    """Backups are made, but the last one is old."""
    VERSION_SKEW = "version-skew"
    """Devices run older firmware than the newest that was released for their model."""
    LABEL_OFFLINE = "label-offline"
    """A large share of the devices with a label is disconnected: a rule of a user."""
    MEASUREMENT = "measurement"
    """Devices report values that a rule of a user names."""


DEVICE_RULES: Final = frozenset(
    {
        Rule.RELAY_LOST,
        Rule.DEVICE_OFFLINE,
        Rule.DEVICE_UNSTABLE,
        Rule.SAMPLES_LOST,
        Rule.BATTERY_LOW,
        Rule.MEASUREMENT,
    }
)
"""Rules whose members are devices, which the alarm affects."""
GATEWAY_RULES: Final = frozenset(
    {
        Rule.GATEWAYS_LOST,
        Rule.GATEWAY_OFFLINE,
        Rule.GATEWAY_UNSTABLE,
        Rule.GATEWAY_NEVER_CONNECTED,
        Rule.GATEWAY_CLOCK,
        Rule.REJECTS_RISING,
    }
)
"""Rules whose members are gateways."""


SERVICE_RULES: Final = frozenset({Rule.BROKER, Rule.INGEST_LAG, Rule.DISK, Rule.CERTIFICATE, Rule.BACKUP_OLD})
"""Rules about this service, which is known also while no reports arrive, and directly after a start."""


USER_RULES: Final = (Rule.MEASUREMENT, Rule.LABEL_OFFLINE)
"""Kinds of rules that users write. Their conditions are those of single rules, such as `measurement/7`."""


class Severity(IntEnum):
    """Severity of an alarm; a higher number is worse."""

    INFO = 1
    """Plan it."""
    WARNING = 2
    """Act today or this week."""
    CRITICAL = 3
    """Act now."""


class AlarmTimes(NamedTuple):
    """Times of the built-in rules, in milliseconds."""

    gateway_offline: int = 5 * _MINUTE_MS
    """Time for which a gateway must be away before its alarm opens."""
    gateway_back: int = 2 * _MINUTE_MS
    """Time for which a gateway must be connected before its alarm is cleared."""
    gateways_lost: int = 2 * _MINUTE_MS
    """Time for which many gateways must be away before their common alarm opens."""
    gateways_window: int = 10 * _MINUTE_MS
    """Time within which gateways with a common cause are lost: their keep-alives end one after the other."""
    device_offline: int = 10 * _MINUTE_MS
    """Shortest time for which a device must be away before its alarm opens; longer if it often is away."""
    device_offline_max: int = 72 * _HOUR_MS
    """Longest time for which a device that often is away must be away before its alarm opens."""
    device_back: int = 2 * _MINUTE_MS
    """Shortest time for which a device must be connected before its alarm is cleared."""
    relay_lost: int = 10 * _MINUTE_MS
    """Time for which an extender must be silent before its alarm opens."""
    relay_back: int = 5 * _MINUTE_MS
    """Time for which an extender must be back before its alarm is cleared."""
    burst_window: int = 10 * _MINUTE_MS
    """Time within which devices stop that have a cause in common."""
    return_check: int = 10 * _MINUTE_MS
    """Time after which the devices of a gateway that is connected again are checked."""
    return_max: int = DAY_MS
    """Longest time that a device gets to report after its gateway is connected again."""
    reopen: int = DAY_MS
    """Time after its end in which an alarm with the same cause is the same alarm again."""
    outage: int = _MINUTE_MS
    """Time without evaluation after which the service counts as having been away."""
    settling: int = 2 * _MINUTE_MS
    """Time after the service was away in which no alarm opens or is cleared."""


DEFAULT_TIMES: Final = AlarmTimes()

REPEAT_DELAYS: Final = (30 * _MINUTE_MS, _HOUR_MS, 2 * _HOUR_MS, 4 * _HOUR_MS)
"""Time for which the subject of an alarm must be well before the alarm is cleared: when it opened the second,
third, fourth time within a day, and from the fifth time on.

Without this, a gateway that comes and goes would cause two messages each time: so its alarm stays open.
"""

MIN_GATEWAYS_LOST: Final = 3
GATEWAYS_LOST_PERCENT: Final = 20
GATEWAYS_BACK_PERCENT: Final = 80
"""Gateways have a common cause if at least three of them, and a fifth, are lost within the time above; or all
of at least two. The cause is gone when four of five are back."""

RELAY_CAUSE: Final = "relay-silent"
"""Cause of devices that a lost extender cuts off."""
BURST_CAUSE: Final = "burst"
"""Cause of devices that stopped at the same time without a lost extender in common."""
UNKNOWN_CAUSE: Final = "unknown"
"""Cause of devices behind an extender that answers although most of them are silent."""

MANY_CUT_OFF: Final = 20
"""The alarm of an extender is critical from so many devices on."""
CRITICAL_BURST_PERCENT: Final = 50
"""Devices that stopped at the same time are critical if they are so many of those behind their gateway."""
CERTAIN_PERCENT: Final = 80
"""An extender certainly cuts devices off if so many of those last heard by it are silent."""

LOW_BATTERY: Final = 5
"""Charge in percent of a battery up to which it explains that a device is silent."""
WEAK_RSSI: Final = -88
"""RSSI in dBm below which the signal explains that a device is silent."""

USUAL_ABSENCE_FACTOR: Final = 1.5
USUAL_ABSENCE_MS: Final = 21 * DAY_MS
USUAL_ABSENCE_ROWS: Final = 100
"""A device is given one and a half times the second-longest of its absences that ended by themselves in the
last three weeks, as far as its last hundred changes show. The second-longest: one incident must not hide the
next."""
