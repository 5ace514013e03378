"""`fleet.alarms`: what needs attention, and why."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from meshfleet.client.arguments import (
    check_text,
    format_optional_time,
    normalize_device_id,
    normalize_mac,
    parse_enum,
    to_tuple,
)
from meshfleet.client.rest.http_caller import RestResource
from meshfleet.client.rest.http_messages import build_query
from meshfleet.errors.protocol import MalformedInput
from meshfleet.rest.alarms import (
    ALARMS_PATH,
    ATTENTION_PATH,
    MAX_ACKNOWLEDGED,
    MAX_SILENCE_SECONDS,
    MIN_SILENCE_SECONDS,
    Alarm,
    AlarmAcknowledgments,
    AlarmEventPage,
    AlarmMemberPage,
    AlarmNewsPage,
    AlarmPage,
    AlarmRule,
    AlarmSelection,
    AlarmSeverity,
    AlarmState,
    AlarmStateFilter,
    Attention,
    NewAlarmNote,
    NewAlarmSilence,
    SeenAlarms,
    UnreadAlarms,
)
from meshfleet.rest.paths import alarm_path, silence_path
from meshfleet.rest.silences import SILENCES_PATH, NewSilence, Silence, SilenceList

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from meshfleet.client.arguments import Moment
    from meshfleet.rest.alarms import AlarmAcknowledgment, AlarmEvent, AlarmMember, AlarmNews


class Alarms(RestResource):
    """Alarms of a fleet. Methods accept the id of an alarm or an `Alarm` object."""

    async def attention(self) -> Attention:
        """Return the state of the fleet in a sentence, and the alarms that are open or acknowledged."""
        return await self._caller.get(Attention, ATTENTION_PATH)

    def list(  # noqa: PLR0913 # keyword-only filters
        self,
        *,
        states: str | AlarmState | AlarmStateFilter | Iterable[str | AlarmState | AlarmStateFilter] = (),
        severities: str | AlarmSeverity | Iterable[str | AlarmSeverity] = (),
        rule: AlarmRule | str | None = None,
        gateway: str | None = None,
        device: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> AsyncGenerator[Alarm, None]:
        """List alarms, the most severe first, and among these the newest first.

        Without `states`, list those that are open or acknowledged; `silenced` are those of them that are
        silenced now. `device` is a member of the alarm; `since`
        and `until` limit when it was opened.
        """
        query = build_query(
            {
                "Rule": None if rule is None else parse_enum(AlarmRule, rule, "rule"),
                "Gateway": None if gateway is None else normalize_mac(gateway),
                "Device": None if device is None else normalize_device_id(device),
                "From": format_optional_time(since),
                "To": format_optional_time(until),
            },
            {
                "State": [parse_enum(AlarmStateFilter, each, "states") for each in to_tuple(states)],
                "Severity": [parse_enum(AlarmSeverity, each, "severities") for each in to_tuple(severities)],
            },
        )
        return self._caller.iterate_items(AlarmPage, ALARMS_PATH, query)

    async def show(self, alarm: str | Alarm) -> Alarm:
        """Return an alarm."""
        return await self._caller.get(Alarm, alarm_path(to_alarm_id(alarm)))

    def members(self, alarm: str | Alarm) -> AsyncGenerator[AlarmMember, None]:
        """List the devices or gateways that belong to an alarm now."""
        return self._caller.iterate_items(AlarmMemberPage, f"{alarm_path(to_alarm_id(alarm))}/members")

    def events(self, alarm: str | Alarm) -> AsyncGenerator[AlarmEvent, None]:
        """List what happened to an alarm, the newest event first."""
        return self._caller.iterate_items(AlarmEventPage, f"{alarm_path(to_alarm_id(alarm))}/events")

    def news(self) -> AsyncGenerator[AlarmNews, None]:
        """List when alarms were opened, became more severe or ended, the newest first."""
        return self._caller.iterate_items(AlarmNewsPage, f"{ALARMS_PATH}/events")

    async def mark_seen(self, up_to: int) -> UnreadAlarms:
        """Record that this user has seen the events of alarms up to a number. Return what is unread."""
        return await self._caller.put(UnreadAlarms, f"{ALARMS_PATH}/seen", SeenAlarms(up_to=up_to))

    async def acknowledge(self, alarm: str | Alarm) -> Alarm:
        """Take on an alarm with its present members. A member that joins later opens it again."""
        return await self._post(alarm, "acknowledge")

    async def acknowledge_all(self, alarms: Iterable[str | Alarm]) -> Sequence[AlarmAcknowledgment]:
        """Take on up to 1,000 alarms. Return of each whether it is acknowledged now, and if not, why."""
        body = AlarmSelection(ids=tuple(to_alarm_id(each) for each in alarms))
        if not 1 <= len(body.ids) <= MAX_ACKNOWLEDGED:
            raise MalformedInput("alarms", f"must be 1 to {MAX_ACKNOWLEDGED} alarms")
        done = await self._caller.post(AlarmAcknowledgments, f"{ALARMS_PATH}/acknowledge", body)
        return done.items

    async def unacknowledge(self, alarm: str | Alarm) -> Alarm:
        """Take an acknowledgment back."""
        return await self._post(alarm, "unacknowledge")

    async def add_note(self, alarm: str | Alarm, text: str) -> Alarm:
        """Write a note on an alarm."""
        return await self._post(alarm, "notes", NewAlarmNote(text=check_text(text, "text")))

    async def silence(
        self, alarm: str | Alarm, duration: timedelta | float, *, note: str | None = None
    ) -> Alarm:
        """Send no messages about an alarm for a while, also not about its end. It stays in the list.

        `duration` is 1 minute to 90 days; a number is in seconds. An earlier silence is replaced.
        """
        seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
        if not MIN_SILENCE_SECONDS <= seconds <= MAX_SILENCE_SECONDS:
            raise MalformedInput("duration", "must be 1 minute to 90 days")
        body = NewAlarmSilence(
            seconds=round(seconds), note=None if note is None else check_text(note, "note")
        )
        return await self._post(alarm, "silence", body)

    async def unsilence(self, alarm: str | Alarm) -> Alarm:
        """End the silence of an alarm."""
        return await self._post(alarm, "unsilence")

    async def silences(self) -> Sequence[Silence]:
        """Return all maintenance windows by their beginning, also those that ended in the last 30 days."""
        return (await self._caller.get(SilenceList, SILENCES_PATH)).items

    async def show_silence(self, silence: str | Silence) -> Silence:
        """Return a maintenance window, with the number of alarms that it silences now."""
        return await self._caller.get(Silence, silence_path(to_silence_id(silence)))

    async def add_silence(self, silence: NewSilence) -> Silence:
        """Create a maintenance window: alarms whose members are all in its scope are not told."""
        return await self._caller.post(Silence, SILENCES_PATH, silence)

    async def change_silence(self, silence: str | Silence, new: NewSilence) -> Silence:
        """Replace a maintenance window. Alarms that it does not silence any more are told."""
        return await self._caller.put(Silence, silence_path(to_silence_id(silence)), new)

    async def delete_silence(self, silence: str | Silence) -> None:
        """Delete a maintenance window. Alarms that it silences are told that they are still open."""
        await self._caller.delete(silence_path(to_silence_id(silence)))

    async def _post(
        self, alarm: str | Alarm, action: str, body: NewAlarmNote | NewAlarmSilence | None = None
    ) -> Alarm:
        return await self._caller.post(Alarm, f"{alarm_path(to_alarm_id(alarm))}/{action}", body)


def to_alarm_id(alarm: str | Alarm) -> str:
    """Return the id of an alarm that is given as its id or as an object."""
    return alarm.id if isinstance(alarm, Alarm) else check_text(alarm, "alarm")


def to_silence_id(silence: str | Silence) -> str:
    """Return the id of a silence that is given as its id or as an object."""
    return silence.id if isinstance(silence, Silence) else check_text(silence, "silence")
