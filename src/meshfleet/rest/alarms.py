"""JSON bodies of the REST API: alarms, and what needs attention."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from meshfleet.rest.bodies import DeviceIdText, RequestBody, ResponseBody, TimeText

ALARMS_PATH: Final = "/api/v1/alarms"
ATTENTION_PATH: Final = "/api/v1/attention"

MAX_NOTE_CHARACTERS: Final = 1000
"""Maximum length of a note on an alarm, in characters."""
MIN_SILENCE_SECONDS: Final = 60
MAX_SILENCE_SECONDS: Final = 90 * 86_400

AlarmIdText = Annotated[str, Meta(pattern="^alarm-[1-9][0-9]*$")]


class AlarmRule(StrEnum):
    """Rule that opened an alarm (rest-270)."""

    GATEWAYS_LOST = "gateways-lost"
    GATEWAY_OFFLINE = "gateway-offline"
    RELAY_LOST = "relay-lost"
    DEVICE_OFFLINE = "device-offline"
    GATEWAY_UNSTABLE = "gateway-unstable"
    DEVICE_UNSTABLE = "device-unstable"
    GATEWAY_NEVER_CONNECTED = "gateway-never-connected"
    GATEWAY_CLOCK = "gateway-clock"
    SERVICE_CLOCK = "service-clock"
    REJECTS_RISING = "rejects-rising"
    SAMPLES_LOST = "samples-lost"
    BATTERY_LOW = "battery-low"
    JOB_STOPPED = "job-stopped"
    JOB_ENDED_BADLY = "job-ended-badly"
    JOB_STUCK = "job-stuck"
    CHANNEL_FAILING = "channel-failing"
    DATABASE = "database"
    BROKER = "broker"
    INGEST_LAG = "ingest-lag"
    DISK = "disk"
    CERTIFICATE = "certificate"
    BACKUP_OLD = "backup-old"
    VERSION_SKEW = "version-skew"
    LABEL_OFFLINE = "label-offline"
    MEASUREMENT = "measurement"


class AlarmSeverity(StrEnum):
    """Severity of an alarm: act now, act today or this week, plan it."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class AlarmState(StrEnum):
    """State of an alarm (rest-271)."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    CLEARED = "cleared"


class AlarmStateFilter(StrEnum):
    """State by which alarms are listed: one of `AlarmState`, or `silenced` (rest-281)."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    CLEARED = "cleared"
    SILENCED = "silenced"
    """Open or acknowledged, and silenced for now."""


class AlarmCause(ResponseBody, frozen=True, kw_only=True):
    """Why an alarm was opened."""

    code: str
    """Stable code; later versions may add codes."""
    params: dict[str, Any]
    """Numbers of the sentence, such as `devices`, for clients with sentences of their own."""


class AlarmAction(ResponseBody, frozen=True, kw_only=True):
    """First thing to do about an alarm."""

    code: str
    text: str
    href: str
    """Path of the console at which to do it."""


class AlarmSubject(ResponseBody, frozen=True, kw_only=True):
    """Device, gateway, channel or job that an alarm is about; or the fleet, or this service."""

    kind: Literal["fleet", "gateway", "device", "channel", "job", "service"]
    id: str | None
    """Id of the device, of the gateway as a device, of the channel or of the job; else null."""
    name: str | None


class Acknowledgment(ResponseBody, frozen=True, kw_only=True):
    """Account that takes care of an alarm, and since when."""

    by: str
    at: TimeText


class Alarm(ResponseBody, frozen=True, kw_only=True):
    """Alarm: one cause of one or more faults (rest-269)."""

    id: AlarmIdText
    key: str
    """Text that is the same whenever this cause returns."""
    rule: str
    severity: AlarmSeverity
    state: AlarmState
    sentence: str
    cause: AlarmCause
    action: AlarmAction
    subject: AlarmSubject
    since: TimeText
    """When the fault began."""
    opened_at: TimeText
    """When it had lasted long enough to be an alarm."""
    cleared_at: TimeText | None
    recovering_since: TimeText | None
    """When everything was well again; the alarm stays open while this is watched."""
    member_count: int
    affected_devices: int
    peak_affected: int
    acknowledged: Acknowledgment | None
    new_since_acknowledged: int
    """Number of members that joined after an acknowledgment."""
    reopened: int
    """How often the same cause has returned within a day."""
    version: int
    """Number that grows with every change of the alarm."""
    silenced_until: TimeText | None
    """Time until which no messages about the alarm are sent; null if it is not silenced."""
    silenced_by: str | None


class Certainty(StrEnum):
    """How sure a diagnosis is."""

    CERTAIN = "certain"
    LIKELY = "likely"
    UNKNOWN = "unknown"


class DiagnosisFact(ResponseBody, frozen=True, kw_only=True):
    """Fact that a diagnosis is based on."""

    time: TimeText
    text: str


class Diagnosis(ResponseBody, frozen=True, kw_only=True):
    """Cause of the present state of a device, and the facts that show it (rest-275)."""

    device: DeviceIdText
    code: str
    """Stable code; later versions may add codes."""
    sentence: str
    explanation: str
    """The sentence without "... has been offline for ..." or "... is cut off", beside `since` (rest-294)."""
    certainty: Certainty
    since: TimeText
    """When the device connected or disconnected last."""
    evidence: list[DiagnosisFact]
    """The newest fact first."""
    action: AlarmAction | None
    """First thing to do; null if nothing is to be done."""


class AlarmPage(ResponseBody, frozen=True, kw_only=True):
    """Page of alarms, the most severe first, and among these the newest first."""

    items: list[Alarm]
    next_token: str | None


class AlarmMember(ResponseBody, frozen=True, kw_only=True):
    """Device or gateway that belongs to an alarm."""

    id: str
    name: str
    since: TimeText
    state: Literal["active", "clearing"]
    """`clearing`: it is well again, and watched."""


class AlarmMemberPage(ResponseBody, frozen=True, kw_only=True):
    """Page of the members of an alarm."""

    items: list[AlarmMember]
    next_token: str | None


class AlarmEvent(ResponseBody, frozen=True, kw_only=True):
    """Event of an alarm, such as its opening (rest-272)."""

    time: TimeText
    kind: str
    """`opened`, `members`, `cleared` and others; later versions may add kinds."""
    actor: str | None
    """User, API key or program; null if the service changed the alarm by itself."""
    detail: dict[str, Any]


class AlarmEventPage(ResponseBody, frozen=True, kw_only=True):
    """Page of the events of an alarm, the newest first."""

    items: list[AlarmEvent]
    next_token: str | None


class NewAlarmNote(RequestBody, frozen=True, kw_only=True):
    """Note that a user writes on an alarm."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_NOTE_CHARACTERS)]


class NewAlarmSilence(RequestBody, frozen=True, kw_only=True):
    """Request to send no messages about an alarm for a while (rest-281)."""

    seconds: Annotated[int, Meta(ge=MIN_SILENCE_SECONDS, le=MAX_SILENCE_SECONDS)]
    note: Annotated[str, Meta(min_length=1, max_length=MAX_NOTE_CHARACTERS)] | None = None
    """Note that is written on the alarm, such as the reason."""


MAX_ACKNOWLEDGED: Final = 1000
"""Maximum number of alarms that are acknowledged with one request."""


class AlarmSelection(RequestBody, frozen=True, kw_only=True):
    """Request to acknowledge several alarms (rest-291)."""

    ids: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MAX_ACKNOWLEDGED)]


class AlarmAcknowledgment(ResponseBody, frozen=True, kw_only=True):
    """Outcome of the acknowledgment of one of several alarms."""

    id: str
    acknowledged: bool
    """Whether the alarm is acknowledged now."""
    code: Literal["not-found", "alarm-cleared"] | None
    """Why it is not; null if it is."""


class AlarmAcknowledgments(ResponseBody, frozen=True, kw_only=True):
    """Outcomes of the acknowledgment of several alarms, in the order of the request."""

    items: list[AlarmAcknowledgment]


class SeenAlarms(RequestBody, frozen=True, kw_only=True):
    """Request of a user who has seen the events of alarms (rest-290)."""

    up_to: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """Number of the newest event that the user has seen."""


class UnreadAlarms(ResponseBody, frozen=True, kw_only=True):
    """Alarms with events that a user has not seen yet (rest-290)."""

    count: int
    """Number of alarms that were opened, became more severe or ended since."""
    critical: bool
    """Whether one of them is critical and not over."""
    up_to: int
    """Number of the newest event, for `PUT /api/v1/alarms/seen`."""


class AlarmNews(ResponseBody, frozen=True, kw_only=True):
    """Event of any alarm that people want to know of (rest-290)."""

    number: int
    """Number that grows with each event."""
    time: TimeText
    kind: str
    """`opened`, `reopened`, `severity` or `cleared`; later versions may add kinds."""
    alarm: AlarmIdText
    severity: AlarmSeverity
    """Severity of the alarm now."""
    sentence: str
    """Sentence of the alarm."""


class AlarmNewsPage(ResponseBody, frozen=True, kw_only=True):
    """Page of events of all alarms, the newest first."""

    items: list[AlarmNews]
    next_token: str | None


class Verdict(ResponseBody, frozen=True, kw_only=True):
    """State of the whole fleet in one sentence."""

    tone: Literal["ok", "warning", "critical", "unknown"]
    sentence: str


class AttentionCounts(ResponseBody, frozen=True, kw_only=True):
    """How many devices and gateways there are, and how many of them are connected."""

    devices: int
    connected: int
    gateways: int
    gateways_connected: int


class HiddenAlarms(ResponseBody, frozen=True, kw_only=True):
    """How many alarms `items` leaves out on purpose."""

    silenced: int
    silences: int
    """Number of silences that hide them: maintenance windows, and alarms that were silenced one by one."""


class Attention(ResponseBody, frozen=True, kw_only=True):
    """State of the fleet in a sentence, and the alarms that are not over (rest-273)."""

    verdict: Verdict
    checked_at: TimeText
    counts: AttentionCounts
    items: list[Alarm]
    """Open and acknowledged alarms, at most 50, the most severe first; without those that are silenced."""
    more: int
    """Number of alarms that are not in `items` because there are too many."""
    hidden: HiddenAlarms
    unread: UnreadAlarms | None
    """Alarms with events that the user has not seen yet; null for API keys."""
    channels_configured: bool
    """Whether alarms are sent anywhere: a channel that is not off, and a route that leads to it."""
