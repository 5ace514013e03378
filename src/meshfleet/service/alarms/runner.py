"""Task that evaluates the rules of alarms, and publishes alarms that have changed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.db import bulk
from meshfleet.errors import FleetError
from meshfleet.mqtt.broker import check_ownership
from meshfleet.service.alarms import engine, progress, rule_store
from meshfleet.service.alarms.alarms import delete_ended_alarms
from meshfleet.service.alarms.builtin_rules import change_times, change_watches
from meshfleet.service.alarms.conditions import ConditionState
from meshfleet.service.alarms.rules import DEFAULT_TIMES, AlarmTimes
from meshfleet.service.alarms.watches.registry import WATCHES, WatchSchedule
from meshfleet.service.devices import fleet_count

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.alarms.rules import Rule
    from meshfleet.service.alarms.user_rules.evaluator import UserRules
    from meshfleet.service.alarms.watches.watch import ServiceFacts, Watch
    from meshfleet.service.availability.recorder import AvailabilityRecorder
    from meshfleet.service.clock import Now

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 2.0
"""Seconds between two looks at the history of connections."""
_IDLE_MS: Final = 20_000
"""Milliseconds after which the rules are evaluated even if nothing has changed."""

_STALLED_MS: Final = 60_000
"""Milliseconds without a successful look after which the evaluation counts as stalled."""
_DELETE_MS: Final = 60_000
"""Milliseconds between two deletions of alarms whose retention has ended."""

_SELECT_DUE: Final = "SELECT DISTINCT rule, state FROM alarm_condition WHERE due <= ?"


class AlarmRunner:
    """Evaluates rules while the service runs. Only one process of a database may do so."""

    def __init__(  # noqa: PLR0913 # keyword-only
        self,
        database: Database,
        on_changed: Callable[[Collection[int]], None],
        *,
        is_receiving: Callable[[], bool],
        read_service_facts: Callable[[], ServiceFacts] | None = None,
        owner: bytes | None,
        retention_ms: int | None,
        availability: AvailabilityRecorder | None = None,
        times: AlarmTimes = DEFAULT_TIMES,
        user_rules: UserRules | None = None,
        now: Now,
    ) -> None:
        """Create a runner that reports the row ids of changed alarms to `on_changed`.

        `is_receiving` returns whether the broker delivers reports: without them, silence means nothing.
        `read_service_facts` is called in a thread before each evaluation; without it nothing is known about
        the service itself. `user_rules` are evaluated together with the built-in ones. `owner` is the token
        that proves that no other process evaluates rules; None if there can be none. `availability` records
        with each evaluation how many devices are online.
        """
        self._database = database
        self._on_changed = on_changed
        self._is_receiving = is_receiving
        self._read_service_facts = read_service_facts
        self._has_started = False
        self._owner = owner
        self.retention_ms = retention_ms
        """Milliseconds for which alarms are kept after their end; None keeps them forever."""
        self._availability = availability
        self._times = times
        self._user_rules = user_rules
        self._now = now
        self._deleted_at = 0
        self._worked_at: int | None = None
        """Time of the last look without an error."""
        self._schedule = WatchSchedule()
        self._failing: set[Rule] = set()
        """Rules whose watches have a defect, which is logged."""

    async def run(self) -> None:
        """Evaluate rules until canceled."""
        while True:
            try:
                await self.evaluate()
                await self.delete_old()
                self._worked_at = self._now()
            except (FleetError, DBAPIError) as exc:
                _log.warning("alarms cannot be evaluated (%s); trying again", type(exc).__name__)
            except Exception:  # noqa: BLE001 # a defect in a rule must not stop the service
                _log.exception("alarms cannot be evaluated: internal error; trying again")
            await asyncio.sleep(_PAUSE_SECONDS)

    @property
    def is_working(self) -> bool:
        """Whether the rules have been looked at lately, without an error."""
        return self._worked_at is not None and 0 <= self._now() - self._worked_at <= _STALLED_MS

    async def evaluate(self) -> None:
        """Evaluate the rules if anything has changed, or the time of a condition has come."""
        now, is_receiving = self._now(), self._is_receiving()
        watches = self._schedule.list_due(now)
        looking = {each.rule for each in watches}
        has_work = self._user_rules is not None and await self._user_rules.prepare()
        is_due = has_work or not (is_receiving and self._has_started)
        if not is_due and not await self._database.read(_is_due, now, looking):
            return
        service = None
        if self._read_service_facts is not None:
            # In a thread: a disk that hangs must not block the event loop.
            service = await asyncio.to_thread(self._read_service_facts)
        # At its start the service does not know which gateways will connect again.
        changed = await self._database.write(
            self._evaluate, now, service, watches, is_receiving=is_receiving and self._has_started
        )
        if self._user_rules is not None:
            self._user_rules.confirm()
        self._schedule.record_looks(watches, now)
        self._has_started = True
        if changed:
            self._on_changed(changed)

    async def delete_old(self) -> None:
        """Delete alarms whose retention has ended, now and then."""
        now = self._now()
        if self.retention_ms is None or 0 <= now - self._deleted_at < _DELETE_MS:
            return
        self._deleted_at = now
        await self._database.write(delete_ended_alarms, now - self.retention_ms)

    def _evaluate(
        self,
        connection: Connection,
        now: int,
        service: ServiceFacts | None,
        watches: Sequence[Watch],
        *,
        is_receiving: bool,
    ) -> set[int]:
        if self._owner is not None:
            check_ownership(connection, self._owner)
        if not self._has_started:
            fleet_count.count_again(connection)
        fleet_count.merge_counts(connection)
        changed_rules = rule_store.find_changed(connection)
        changes = rule_store.load_changes(connection)
        changed = engine.evaluate(
            connection,
            now,
            change_times(self._times, changes),
            is_receiving=is_receiving,
            watches=change_watches(watches, changes),
            service=service,
            failing=self._failing,
            changes=changes,
            user_rules=self._user_rules,
        )
        rule_store.mark_applied(connection, changed_rules)
        if self._availability is not None:
            current = progress.load_progress(connection)
            # After the service was away, devices count as connected until they have been silent for long.
            is_known = is_receiving and current is not None and current.quiet_until <= now
            self._availability.record(connection, now, is_known=is_known)
        return changed


def _is_due(connection: Connection, now: int, looking: Collection[Rule]) -> bool:
    """Return whether an evaluation would find anything, in which the watches of some rules look."""
    before = progress.load_progress(connection)
    return (
        before is None
        or not 0 <= now - before.evaluated_at < _IDLE_MS
        or progress.load_newest_position(connection) > before.position
        or bool(rule_store.find_changed(connection))
        or any(
            # A fault opens its alarm only while its watch sees it, which it may not for long.
            rule in looking or rule not in WATCHES or state != ConditionState.PENDING
            for rule, state in bulk.query_rows(connection, _SELECT_DUE, (now,))
        )
    )
