"""Follows committed samples for rules of users. It remembers only devices that are, or were lately, at fault.

A sample that no rule is for costs one look-up. A fault begins only with the newest stored sample of a device:
so samples from the memory of a device, which arrive late, open nothing, and nothing must be remembered about
devices that are well. What has changed is written by the next evaluation. What is lost in a crash before
that heals with the next sample of the device, which is compared with the stored condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.db.samples import SampleKind
from meshfleet.db.samples.sample import ROW_EXTRAS
from meshfleet.rest.alarm_rules import RuleOperator
from meshfleet.service.alarms.conditions import ConditionState
from meshfleet.service.alarms.user_rules.state_machine import Step, advance
from meshfleet.service.ingest.sample_values import from_sample_value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.db.samples import SampleRow
    from meshfleet.service.alarms.user_rules.definition import UserRule
    from meshfleet.service.alarms.user_rules.label_share import LabelShare
    from meshfleet.service.alarms.user_rules.state_machine import Judgment, Value
    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates
    from meshfleet.service.ingest.subscribers import FlushPart

VALUE_KINDS: Final = frozenset({SampleKind.PROPERTY, SampleKind.MEASUREMENT, SampleKind.EVENT})
"""Kinds of samples with values that rules compare."""
MAX_GROUPED: Final = 50_000
MAX_SINGLE: Final = 1_000
"""Maximum number of devices at fault of a rule whose devices have an alarm in common, or one each."""
_MAX_EXACT_INTEGER: Final = 2**53
_MAX_CANDIDATES: Final = 10_000
"""Maximum number of devices of a rule that wait for a look at their newest sample. Others heal later."""
_REFRESH_MS: Final = 5 * 60_000
"""Time after which the value in the sentence of an open alarm is renewed."""


class Observation(NamedTuple):
    """Value of a sample, at its time by the clock of the service."""

    time: int
    value: Value


def read_time(row: SampleRow) -> int | None:
    """Return the time of a sample by the clock of the service; None if the sample cannot be judged."""
    time, kind, _, _, _, _, _, extras = row
    if kind not in VALUE_KINDS or (extras is not None and not extras.has_plausible_time):
        return None
    return time + (0 if extras is None else extras.shift or 0)


def read_observation(row: SampleRow) -> Observation | None:
    """Return the value and the time of a sample; None if it has none that rules compare."""
    time = read_time(row)
    value = from_sample_value(row[5], row[ROW_EXTRAS])
    if time is None or not isinstance(value, float | int | str):
        return None  # a record, a list, or a value that could not be decoded
    if isinstance(value, int) and abs(value) > _MAX_EXACT_INTEGER:
        return None  # no sensor measures this; as a float it may not even exist
    return Observation(time, value)


@dataclass(slots=True)
class Scope:
    """Devices that a rule is for."""

    members: frozenset[int] | None = None
    """None for all."""
    excluded: frozenset[int] = frozenset()

    def includes(self, device: int) -> bool:
        """Return whether the rule is for a device."""
        return (self.members is None or device in self.members) and device not in self.excluded


class WatchedRule:
    """Rule of a user with the devices that are, or were lately, at fault."""

    def __init__(self, rule: UserRule, scope: Scope, judgments: dict[int, Judgment]) -> None:
        self.rule = rule
        self.scope = scope
        self.threshold, self.timing = rule.threshold, rule.timing
        self.judgments = judgments
        self.unverified = set(judgments)
        """Devices whose judgment was stored by an earlier process: their newest sample is looked up first."""
        self.changes: dict[int, None] = {}
        """Devices whose judgment is not written yet, in the order of the changes."""
        self.candidates: dict[int, None] = {}
        """Devices whose newest sample must be looked up."""
        self.heard: dict[int, int] = {}
        """Time of the newest sample of each device since the start, of a rule for missing values."""
        self.expected_since: dict[int, int] = {}
        """Time from which on a device should report, of a rule for missing values."""
        self.share: LabelShare | None = None
        """Devices of the label of the rule, as they were counted last."""
        self.told: dict[int, int] = {}
        """Time of the value in the sentence of the alarm, by device."""
        self.looked_at: int | None = None
        """Time of the last look at what no sample tells: missing values, and shares of labels."""
        self.leaving: dict[int, None] = {}
        """Devices whose conditions must end, because the rule is not for them any more."""
        self.is_too_wide = False
        self.told_too_wide: bool | None = None
        """Whether an alarm says so; None if that is not known."""

    @property
    def limit(self) -> int:
        """Maximum number of devices at fault."""
        return MAX_GROUPED if self.rule.is_grouped else MAX_SINGLE

    @property
    def longest_silence(self) -> int:
        """Time without a value that is allowed, in milliseconds, of a rule for missing values."""
        when = self.rule.body.when
        return 0 if when is None else int(float(when.value) * 1000)

    def observe(self, device: int, found: Observation) -> None:
        """Judge a sample that has arrived."""
        judgment = self.judgments.get(device)
        if judgment is None or device in self.unverified:
            is_bad = self.threshold.is_bad(found.value, judgment)
            is_news = is_bad or (judgment is not None and is_bad is not None)
            if is_news and self.has_room(device) and len(self.candidates) < _MAX_CANDIDATES:
                self.candidates[device] = None
            return
        if found.time > judgment.seen:
            self.feed(device, found)

    def feed(self, device: int, found: Observation, previous: Observation | None = None) -> None:
        """Move the judgment of a device by its newest sample. `previous` is the sample before."""
        before = self.judgments.get(device)
        self.unverified.discard(device)
        is_bad = self.threshold.is_bad(found.value, before)
        if is_bad is None or (is_bad and not self.has_room(device)):
            return
        is_edge = self.threshold.operator is RuleOperator.CHANGES_TO
        if is_bad and before is None and is_edge and not self._has_changed(previous):
            return
        self.step(device, Step(found.time, found.value, is_bad))

    def step(self, device: int, step: Step) -> None:
        """Move the judgment of a device, and remember to write it if its state has changed."""
        before = self.judgments.get(device)
        state = None if before is None else before.state
        after = advance(before, step, self.timing, self.threshold)
        if after is None:
            if before is not None:
                del self.judgments[device]
                self.changes[device] = None
            return
        self.judgments[device] = after
        if after.state is not state or self._is_value_old(device, after):
            self.changes[device] = None

    def _has_changed(self, previous: Observation | None) -> bool:
        return previous is not None and not self.threshold.is_bad(previous.value, None)

    def has_room(self, device: int) -> bool:
        """Return whether another device may be at fault. If not, the rule is too wide."""
        if device not in self.judgments and len(self.judgments) >= self.limit:
            self.is_too_wide = True
            return False
        return True

    def _is_value_old(self, device: int, judgment: Judgment) -> bool:
        """Return whether the sentence of the alarm of a device names a value that is old."""
        if judgment.state is not ConditionState.ACTIVE or self.rule.is_grouped or self.rule.is_for_silence:
            return False
        told = self.told.get(device)
        if told is None or judgment.seen - told >= _REFRESH_MS:
            self.told[device] = judgment.seen
            return told is not None
        return False

    def leave(self, device: int) -> None:
        """Forget a device that the rule is not for any more, and end its condition."""
        self.forget(device)
        self.leaving[device] = None

    def find_worst(self) -> int | None:
        """Return the device whose value is the worst of all that belong to the alarm; None without one."""
        members = [device for device, each in self.judgments.items() if each.is_member and device]
        if not members:
            return None
        return max(members, key=lambda device: self.threshold.measure(self.judgments[device].peak))

    def find_devices_out_of_scope(self) -> list[int]:
        """Return the devices with a judgment that the rule is not for any more."""
        return [each for each in self.judgments if each and not self.scope.includes(each)]

    def forget(self, device: int) -> None:
        """Forget a device."""
        for each in (self.judgments, self.changes, self.candidates, self.told):
            each.pop(device, None)
        self.unverified.discard(device)

    def forget_deleted(self, stored: Collection[int]) -> None:
        """Forget devices of which no condition is stored any more: they were deleted."""
        gone = [
            device
            for device, each in self.judgments.items()
            if each.is_member and device not in self.changes and device not in stored
        ]
        for device in gone:
            self.forget(device)

    def forget_old(self, now: int) -> None:
        """Forget devices that were well for a day, and that the rule was too wide if it is not any more."""
        old = [
            device
            for device, each in self.judgments.items()
            if each.state is ConditionState.QUIET
            and each.remembered_until is not None
            and each.remembered_until <= now
        ]
        for device in old:
            self.forget(device)
        if len(self.judgments) < self.limit * 0.9:
            self.is_too_wide = False


class RuleTracker:
    """Judges committed samples for rules of users. It is a `CommitSubscriber` of ingest."""

    def __init__(self) -> None:
        self.rules: dict[int, WatchedRule] = {}
        self._watched: dict[int, tuple[WatchedRule, ...]] = {}
        """Rules by the number of their identifier."""

    def set_rules(self, rules: Iterable[WatchedRule]) -> None:
        """Replace all rules."""
        self.rules = {each.rule.id: each for each in rules}
        watched: dict[int, list[WatchedRule]] = {}
        for each in self.rules.values():
            if each.rule.body.when is not None:
                watched.setdefault(each.rule.identifier, []).append(each)
        self._watched = {identifier: tuple(found) for identifier, found in watched.items()}

    def on_commit(self, batch: ParsedBatch) -> None:
        """Judge the samples of a committed batch."""
        watched = self._watched
        if not watched:
            return
        for device, rows in batch.rows.items():
            for row in rows:
                if (rules := watched.get(row[2])) is not None:
                    _observe(device, row, rules, batch.now)

    def prepare_flush(self, states: PendingStates, now: int) -> FlushPart:  # noqa: ARG002 # signature of CommitSubscriber
        """Return a flush part without data."""
        return _NOTHING


def _observe(device: int, row: SampleRow, rules: Sequence[WatchedRule], now: int) -> None:
    time = read_time(row)
    if time is None:
        return
    found = read_observation(row)
    for each in rules:
        if not each.scope.includes(device):
            continue
        if each.rule.is_for_silence:
            each.heard[device] = max(min(time, now), each.heard.get(device, 0))
        elif found is not None:
            each.observe(device, found)


class _NoFlushPart:
    """Flush part of a subscriber that stores nothing with device states."""

    def write(self, connection: Connection, added: Collection[int]) -> None:
        """Write nothing."""

    def on_flushed(self) -> None:
        """Do nothing."""


_NOTHING: Final = _NoFlushPart()

Snapshot = dict[int, dict[int, "Judgment"]]
"""Stored judgments by rule and device."""


def reuse_rules(
    before: Mapping[int, WatchedRule],
    rules: Iterable[UserRule],
    scopes: Mapping[int, Scope],
    stored: Snapshot,
) -> list[WatchedRule]:
    """Return the enabled rules with their present devices. Those that were not changed keep judgments."""
    found = []
    for rule in rules:
        if not rule.is_enabled or rule.is_deleted:
            continue
        known = before.get(rule.id)
        if known is not None and known.rule.version == rule.version:
            known.scope = scopes[rule.id]
            known.forget_deleted(stored.get(rule.id, {}))
            found.append(known)
        else:
            is_same = rule.applied_version == rule.version
            found.append(WatchedRule(rule, scopes[rule.id], stored.get(rule.id, {}) if is_same else {}))
    return found
