"""Preview of a rule: what it would have found in the samples of the last seven days.

It moves the same state machine as the live evaluation, with the stored samples in the order of their times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec.structs import astuple

from meshfleet.db import bulk
from meshfleet.errors import Fault, InvalidRequest
from meshfleet.protocol.ids import mac_from_int, to_device_id
from meshfleet.protocol.times import format_millis
from meshfleet.rest.alarm_rules import RuleOperator, RulePreview, RulePreviewExample
from meshfleet.service.alarms.conditions import ConditionState
from meshfleet.service.alarms.rules import Rule
from meshfleet.service.alarms.user_rules.checks import check_rule
from meshfleet.service.alarms.user_rules.definition import UserRule, describe_rule
from meshfleet.service.alarms.user_rules.label_share import count_devices
from meshfleet.service.alarms.user_rules.queries import HISTORY_MS, build_query, load_scope
from meshfleet.service.alarms.user_rules.state_machine import Step, Value, advance, restart
from meshfleet.service.alarms.user_rules.tracker import Observation, read_observation
from meshfleet.service.alarms.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore, StoredSample
    from meshfleet.rest.alarm_rules import NewAlarmRule
    from meshfleet.service.alarms.user_rules.state_machine import Judgment

_MAX_DEVICES: Final = 200
_MAX_SECONDS: Final = 2.0
_MAX_SAMPLES: Final = 50_000
"""Maximum number of samples of a device that are judged: the newest would be missing if there are more."""
_MAX_EXAMPLES: Final = 10

_SELECT_NAMES: Final = "SELECT id, name FROM device WHERE id IN numbers ORDER BY id"
_SELECT_FIRST: Final = "SELECT id, name FROM device ORDER BY id LIMIT ?"
_COUNT_DEVICES: Final = "SELECT count(*) FROM device"
_SELECT_LOSSES: Final = (
    "SELECT device, time FROM connectivity WHERE device IN numbers AND NOT connected AND time > :since"
    " ORDER BY time"
)


class _Target(NamedTuple):
    """Rule of a preview, and the devices whose samples it looks at."""

    rule: UserRule
    size: int
    devices: list[tuple[int, str]]
    losses: Mapping[int, list[int]]


@dataclass(slots=True)
class Membership:
    """Time in which a device belonged to an alarm."""

    since: int
    until: int | None
    peak: Value | None


@dataclass(slots=True)
class History:
    """Memberships that a rule found in the samples of a device."""

    memberships: list[Membership] = field(default_factory=list)
    judgment: Judgment | None = None


async def preview_rule(
    database: Database, samples: SampleStore, new: NewAlarmRule, *, now: int
) -> RulePreview:
    """Try a rule with samples that are stored, for two seconds at most. Raise what `check_rule` raises."""
    started = monotonic()
    target = await database.read(_load_target, new, now)
    if target.rule.kind is Rule.LABEL_OFFLINE:
        return await _preview_share(database, target)
    found: dict[tuple[int, str], History] = {}
    is_exact = target.size == len(target.devices)
    for device in target.devices:
        if monotonic() - started > _MAX_SECONDS:
            is_exact = False
            break
        query = build_query(device[0], target.rule, now, newest_first=False)
        observations = await samples.read(query, _read_observations)
        is_exact &= len(observations) < _MAX_SAMPLES
        found[device] = judge(target.rule, observations, target.losses.get(device[0], ()))
    return _build_preview(target, found, is_exact=is_exact)


def judge(rule: UserRule, observations: Sequence[Observation], losses: Sequence[int] = ()) -> History:
    """Judge the values of a device in the order of their times. `losses` are times of disconnections."""
    history = History()
    threshold, timing = rule.threshold, rule.timing
    previous: Observation | None = None
    for each in _list_steps(observations):
        before = history.judgment
        was_member = before is not None and before.is_member
        is_bad = threshold.is_bad(each.value, before)
        if is_bad is None:
            continue
        is_unchanged = previous is None or threshold.is_bad(previous.value, None)
        previous = each
        if is_bad and before is None and is_unchanged and threshold.operator is RuleOperator.CHANGES_TO:
            continue
        after = history.judgment = advance(before, Step(each.time, each.value, is_bad), timing, threshold)
        is_member = after is not None and after.is_member
        if after is not None and is_member != was_member and _was_away(after, losses):
            restart(after)
            is_member = after.is_member
        _record(history, each.time, was_member=was_member, is_member=is_member)
    return history


def _list_steps(observations: Iterable[Observation]) -> Iterator[Observation]:
    """Yield values in the order of their times, one for each time."""
    newest: int | None = None
    for each in sorted(observations, key=lambda found: found.time):
        if newest is None or each.time > newest:
            newest = each.time
            yield each


def _record(history: History, time: int, *, was_member: bool, is_member: bool) -> None:
    judgment = history.judgment
    if is_member and not was_member and judgment is not None:
        history.memberships.append(Membership(judgment.since, None, judgment.peak))
    elif is_member and judgment is not None:
        history.memberships[-1].peak = judgment.peak
    elif was_member:
        history.memberships[-1].until = time


def _was_away(judgment: Judgment, losses: Sequence[int]) -> bool:
    since = judgment.since if judgment.state is ConditionState.ACTIVE else judgment.back_at
    return since is not None and any(since <= each <= judgment.seen for each in losses)


def _read_observations(samples: Iterable[StoredSample]) -> list[Observation]:
    found: list[Observation] = []
    for each in samples:
        observation = read_observation(astuple(each))
        if observation is not None:
            found.append(observation)
        if len(found) >= _MAX_SAMPLES:
            break
    return found


def _load_target(connection: Connection, new: NewAlarmRule, now: int) -> _Target:
    checked = check_rule(connection, msgspec.structs.replace(new, name=new.name or "Preview"))
    rule = UserRule(
        0, Rule(checked.kind), checked, is_enabled=True, version=1, applied_version=1, is_deleted=False
    )
    if rule.is_for_silence:
        reason = "cannot be tried: what is missing is not stored"
        raise InvalidRequest([Fault("rule.when.operator", reason)])
    if rule.kind is Rule.LABEL_OFFLINE:
        return _Target(rule, 0, [], {})
    scope = load_scope(connection, rule)
    if scope.members is None:
        size = int(bulk.query_rows(connection, _COUNT_DEVICES, ())[0][0]) - len(scope.excluded)
        rows = bulk.query_rows(connection, _SELECT_FIRST, (_MAX_DEVICES + len(scope.excluded),))
    else:
        members = sorted(scope.members - scope.excluded)
        size = len(members)
        rows = bulk.query_in(connection, _SELECT_NAMES, members[:_MAX_DEVICES])
    devices = [(row[0], row[1]) for row in rows if row[0] not in scope.excluded][:_MAX_DEVICES]
    losses: dict[int, list[int]] = {}
    numbers = [number for number, _ in devices]
    for device, time in bulk.query_in(connection, _SELECT_LOSSES, numbers, since=now - HISTORY_MS):
        losses.setdefault(device, []).append(time)
    return _Target(rule, size, devices, losses)


async def _preview_share(database: Database, target: _Target) -> RulePreview:
    """Say what a rule for a label finds now: how many devices were offline before is not stored."""
    body = target.rule.body
    share = await database.read(count_devices, body.label or "")
    percent = round(100 * share.offline / share.total) if share.total else 0
    is_bad = bool(share.total) and target.rule.threshold.is_bad(100 * share.offline / share.total, None)
    return RulePreview(
        matches=share.offline if is_bad else 0,
        scope_size=share.total,
        would_have_opened=0,
        examples=[],
        checked=share.total,
        exact=False,
        sentence=f"{describe_rule(body, body.kind)} Now {percent} % is offline"
        f" ({share.offline} of {share.total}); the days before are not known.",
    )


def _build_preview(
    target: _Target, found: Mapping[tuple[int, str], History], *, is_exact: bool
) -> RulePreview:
    examples = [
        RulePreviewExample(
            device=to_device_id(mac_from_int(number)),
            name=name,
            since=format_millis(each.since),
            until=None if each.until is None else format_millis(each.until),
            peak=each.peak,
        )
        for (number, name), history in found.items()
        for each in history.memberships
    ]
    matches = sum(each.judgment is not None and each.judgment.is_member for each in found.values())
    checked = count(len(found), "device")
    of_all = "" if is_exact else f" of {target.size}, not all samples" if found else ""
    opened = count(len(examples), "alarm") if not target.rule.is_grouped else count(len(examples), "member")
    return RulePreview(
        matches=matches,
        scope_size=target.size,
        would_have_opened=len(examples),
        examples=sorted(examples, key=lambda each: each.since, reverse=True)[:_MAX_EXAMPLES],
        checked=len(found),
        exact=is_exact,
        sentence=f"{describe_rule(target.rule.body, target.rule.kind)} In the last 7 days this would have"
        f" raised {opened} ({checked}{of_all} checked).",
    )
