"""Evaluator of rules of users: prepares an evaluation, and writes what has changed in its transaction."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import astuple
from sqlalchemy.exc import SQLAlchemyError

from meshfleet.errors import FleetError
from meshfleet.service.alarms import rule_store
from meshfleet.service.alarms.user_rules import label_share, missing_values, queries
from meshfleet.service.alarms.user_rules.state_machine import restart
from meshfleet.service.alarms.user_rules.tracker import (
    RuleTracker,
    WatchedRule,
    read_observation,
    reuse_rules,
)
from meshfleet.service.alarms.user_rules.writer import RuleWork, RuleWriter, end_changed_rules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore, StoredSample
    from meshfleet.service.alarms.alarms import AlarmTable
    from meshfleet.service.alarms.user_rules.definition import UserRule
    from meshfleet.service.alarms.user_rules.state_machine import Judgment
    from meshfleet.service.alarms.user_rules.tracker import Observation, Scope
    from meshfleet.service.clock import Now

_log = logging.getLogger(__name__)

_REFRESH_MS: Final = 5 * 60_000
"""Time after which the devices of all rules are loaded again: models of devices are in no audit log."""
_MAX_LOOKUPS: Final = 200
"""Maximum number of devices whose newest samples one evaluation looks up; the others wait."""
_MAX_WRITTEN: Final = 500
"""Maximum number of devices whose judgments one evaluation writes: meanwhile no report is committed."""
_NEWEST_SAMPLES: Final = 10


class _Snapshot(NamedTuple):
    """Rules of users as they are stored, with their devices and judgments."""

    revision: tuple[int, int, int]
    audit_position: int
    rules: list[UserRule]
    scopes: dict[int, Scope]
    judgments: dict[int, dict[int, Judgment]]


class UserRules:
    """Rules of users, as an extension of the evaluation of all rules."""

    def __init__(self, database: Database, samples: SampleStore, *, now: Now) -> None:
        self.tracker = RuleTracker()
        """Subscriber of ingest that follows the samples."""
        self._database = database
        self._samples = samples
        self._now = now
        self._revision: tuple[int, int, int] | None = None
        self._audit_position = 0
        self._refreshed_at: int | None = None
        self._work: list[RuleWork] = []
        self._writer: RuleWriter | None = None
        self._is_failing = False

    async def prepare(self) -> bool:
        """Load rules that were changed, and look at what no committed sample tells.

        Return whether there is something to write.
        """
        self._work = []
        try:
            await self._prepare()
        except (FleetError, SQLAlchemyError):
            raise
        except Exception:  # noqa: BLE001 # a defect here must not stop the built-in rules
            self._log_defect()
        return bool(self._work)

    async def _prepare(self) -> None:
        now = self._now()
        is_due = self._refreshed_at is None or not 0 <= now - self._refreshed_at < _REFRESH_MS
        if is_due or await self._database.read(self._has_changed):
            self._use(await self._database.read(self._load), now)
        rules = [*self.tracker.rules.values()]
        await self._look_up_candidates(rules, now)
        for each in rules:
            if label_share.is_look_due(each, now):
                label = each.rule.body.label or ""
                share = await self._database.read(label_share.count_devices, label)
                label_share.judge_share(each, share, now)
            if missing_values.is_look_due(each, now):
                silent = missing_values.find_silent_devices(each, now)
                connected = await self._database.read(missing_values.load_connected, silent)
                missing_values.judge_silence(each, connected, now)
        self._work = self._collect_work(rules)

    def apply(self, connection: Connection, now: int, alarms: AlarmTable, *, is_quiet: bool) -> None:
        """Write what has changed in the transaction of all rules. While it is quiet, nothing opens or ends.

        This runs in a thread, and so changes nothing that is followed meanwhile: see `confirm`.
        """
        self._writer = None
        end_changed_rules(connection, alarms)
        if is_quiet:
            return
        writer = RuleWriter(connection, now, alarms)
        writer.delete_forgotten()
        try:
            for each in self._work:
                writer.write(each)
        except (FleetError, SQLAlchemyError):
            raise
        except Exception:  # noqa: BLE001 # a defect here must not stop the built-in rules
            self._log_defect()
            return
        self._is_failing = False
        self._writer = writer

    def confirm(self) -> None:
        """Forget what is written, after the commit."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        written = {each.rule.id: each for each in self._work}
        for number, work in written.items():
            rule = self.tracker.rules.get(number)
            if rule is not None and rule.rule.version == work.rule.version:
                _forget_written(rule, work)
        for number, device in writer.restarted:
            rule, work = self.tracker.rules.get(number), written[number]
            original = work.judgments.get(device)
            judgment = None if rule is None else rule.judgments.get(device)
            if judgment is not None and original is not None and judgment.state is original.state:
                restart(judgment)
        for number, device in writer.unknown:
            if (rule := self.tracker.rules.get(number)) is not None:
                rule.forget(device)

    def _log_defect(self) -> None:
        """Log an exception that is handled, unless the last evaluation failed, too."""
        if not self._is_failing:
            _log.exception("rules of users cannot be evaluated: internal error; others are not affected")
        self._is_failing = True

    def _collect_work(self, rules: Iterable[WatchedRule]) -> list[RuleWork]:
        """Copy what is to be written: samples arrive while the transaction runs in its thread."""
        work = []
        remaining = _MAX_WRITTEN
        for each in rules:
            if not (each.changes or each.leaving or each.is_too_wide is not each.told_too_wide):
                continue
            devices = list(islice(each.changes, remaining))
            remaining -= len(devices)
            worst = each.find_worst() if each.rule.is_grouped and devices else None
            work.append(
                RuleWork(
                    each.rule,
                    {device: _copy(each.judgments.get(device)) for device in devices},
                    frozenset(each.leaving),
                    None if worst is None else (worst, replace(each.judgments[worst])),
                    each.share,
                    each.is_too_wide,
                    each.limit,
                )
            )
        return work

    # Rules

    def _has_changed(self, connection: Connection) -> bool:
        if rule_store.find_revision(connection) != self._revision:
            return True
        if not self.tracker.rules:
            return False
        newest = queries.find_newest_change(connection)
        if newest <= self._audit_position:
            return False
        if queries.has_scope_changed(connection, self._audit_position, newest):
            return True
        self._audit_position = newest
        return False

    def _load(self, connection: Connection) -> _Snapshot:
        rules = rule_store.load_user_rules(connection)
        watched = [each for each in rules if each.is_enabled and not each.is_deleted]
        return _Snapshot(
            rule_store.find_revision(connection),
            queries.find_newest_change(connection),
            rules,
            {each.id: queries.load_scope(connection, each) for each in watched},
            {each.id: queries.load_judgments(connection, each) for each in watched},
        )

    def _use(self, snapshot: _Snapshot, now: int) -> None:
        self._revision, self._audit_position = snapshot.revision, snapshot.audit_position
        self._refreshed_at = now
        rules = reuse_rules(self.tracker.rules, snapshot.rules, snapshot.scopes, snapshot.judgments)
        for each in rules:
            each.forget_old(now)
            if each.rule.is_for_silence:
                members = (each.scope.members or frozenset()) - each.scope.excluded
                each.expected_since = {device: each.expected_since.get(device, now) for device in members}
            for device in each.find_devices_out_of_scope():
                each.leave(device)
        self.tracker.set_rules(rules)

    # Newest samples

    async def _look_up_candidates(self, rules: Iterable[WatchedRule], now: int) -> None:
        remaining = _MAX_LOOKUPS
        for each in rules:
            for device in list(islice(each.candidates, remaining)):
                each.candidates.pop(device, None)  # a sample that arrives during the read is looked up again
                newest = await self._samples.read(queries.build_query(device, each.rule, now), _read_newest)
                remaining -= 1
                if newest:
                    each.feed(device, newest[0], newest[1] if len(newest) > 1 else None)


def _read_newest(samples: Iterable[StoredSample]) -> list[Observation]:
    """Return the newest two values, the newest first."""
    found = (read_observation(astuple(each)) for each in islice(samples, _NEWEST_SAMPLES))
    values = (each for each in found if each is not None)
    return sorted(values, key=lambda each: each.time, reverse=True)[:2]


def _copy(judgment: Judgment | None) -> Judgment | None:
    return None if judgment is None else replace(judgment)


def _forget_written(rule: WatchedRule, work: RuleWork) -> None:
    """Forget the changes of a rule that are written, unless a later sample has changed them again."""
    for device, written in work.judgments.items():
        judgment = rule.judgments.get(device)
        if (judgment and judgment.state) is (written and written.state):
            rule.changes.pop(device, None)
    for device in work.leaving:
        rule.leaving.pop(device, None)
    rule.told_too_wide = work.is_too_wide
