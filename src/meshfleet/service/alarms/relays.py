"""Rule of lost extenders: one alarm for an extender that is silent, with all devices that it cuts off.

The members of the alarm are the conditions of the silent devices (`device-offline`), which therefore have no
alarms of their own. A condition of the extender itself (`relay-lost`) says whether it is lost or back. When
it is back, members that stay away become conditions of their own again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.db import bulk
from meshfleet.protocol.ids import mac_from_int
from meshfleet.rest.alarms import Certainty
from meshfleet.service.alarms.alarm_records import EndReason
from meshfleet.service.alarms.alarms import AlarmGroup
from meshfleet.service.alarms.conditions import Condition, ConditionState, Subject
from meshfleet.service.alarms.diagnosis import DeviceCause
from meshfleet.service.alarms.mesh import (
    BURST_PERCENT,
    MIN_BURST,
    Mesh,
    MeshNode,
    NodeState,
    count_moved,
    find_burst,
    load_mesh,
    load_nodes,
)
from meshfleet.service.alarms.probes import PROBE_KEPT_MS, PROBE_LIMIT_MS, PROBE_PAUSE_MS, ProbeResult
from meshfleet.service.alarms.rules import (
    BURST_CAUSE,
    CERTAIN_PERCENT,
    CRITICAL_BURST_PERCENT,
    MANY_CUT_OFF,
    RELAY_CAUSE,
    UNKNOWN_CAUSE,
    Rule,
    Severity,
)
from meshfleet.service.presence.last_seen import MISSED_HEARTBEATS

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.service.alarms.alarms import AlarmTable
    from meshfleet.service.alarms.conditions import ConditionTable
    from meshfleet.service.alarms.rules import AlarmTimes

_SELECT_ABANDONED: Final = """
    SELECT alarm.id FROM alarm
    WHERE alarm.state IN ('open', 'acknowledged') AND alarm.rule = 'relay-lost' AND NOT EXISTS (
        SELECT 1 FROM alarm_condition
        WHERE alarm_condition.rule = 'relay-lost' AND alarm_condition.alarm = alarm.id)
"""
"""Alarms whose extender was deleted, together with its condition."""


class RelayRule:
    """The rule in one evaluation. Meshes are loaded when a device behind their gateway is judged."""

    def __init__(
        self,
        connection: Connection,
        now: int,
        times: AlarmTimes,
        conditions: ConditionTable,
        alarms: AlarmTable,
    ) -> None:
        self._connection = connection
        self._now = now
        self._times = times
        self._conditions = conditions
        self._alarms = alarms
        self._meshes: dict[int, Mesh] = {}
        self._results: dict[int, ProbeResult] = {}
        """Results of probes by device, as they are in this evaluation."""

    # Devices that are silent

    def judge(self, condition: Condition, gateway: int, cause: DeviceCause) -> bool:
        """Make a silent device a member of the alarm of a cause that it shares with others, or let it wait.

        Return False if it is silent for a reason of its own.
        """
        device, mesh = condition.subject.number, self._get_mesh(gateway)
        if device not in mesh.nodes:
            return False
        root, answered = mesh.find_root(device), None
        while not root.is_updating and (suspect := mesh.find_suspect(root.device)) is not None:
            result = self._probe(mesh.nodes[suspect], gateway)
            if result is ProbeResult.AWAITED:
                condition.due = self._now + PROBE_PAUSE_MS
                return True
            if result is not ProbeResult.LOST:
                answered = suspect if result is ProbeResult.ANSWERED else None
                break
            mesh.add_lost(suspect)
            root = mesh.find_root(device)
        if root.is_updating:
            condition.due = self._now + self._times.device_offline
            return True
        return (
            self._join_relay(condition, mesh, mesh.nodes[root.device])
            or self._join_burst(condition, mesh)
            or self._join_unknown(condition, mesh, answered, cause)
        )

    def _get_mesh(self, gateway: int) -> Mesh:
        if gateway not in self._meshes:
            lost = {
                each.subject.number
                for each in self._conditions.load_rule(Rule.RELAY_LOST)
                if each.state is ConditionState.ACTIVE
            }
            self._meshes[gateway] = load_mesh(self._connection, gateway, self._now, self._times, lost)
        return self._meshes[gateway]

    def _probe(self, suspect: MeshNode, gateway: int) -> ProbeResult:
        """Return whether a relay answers. The first time, ask for a probe that is carried out afterwards."""
        if suspect.device not in self._results:
            self._results[suspect.device] = self._find_result(suspect, gateway)
        return self._results[suspect.device]

    def _find_result(self, suspect: MeshNode, gateway: int) -> ProbeResult:
        subject = Subject(Rule.RELAY_PROBE, suspect.device)
        self._conditions.load_subjects([suspect.device])
        probe = self._conditions.find(subject)
        if probe is None:
            pending, due = ConditionState.PENDING, self._now + PROBE_KEPT_MS
            self._conditions.add(
                Condition(subject, suspect.device, gateway, pending, since=self._now, due=due)
            )
            return ProbeResult.AWAITED
        result = next((each for each in ProbeResult if each == probe.cause), ProbeResult.NOT_KNOWN)
        if result is ProbeResult.AWAITED and self._now - probe.since >= PROBE_LIMIT_MS:
            return ProbeResult.NOT_KNOWN
        if result is ProbeResult.LOST and probe.since < suspect.heard_at <= self._now:
            return ProbeResult.ANSWERED  # it was heard after it did not answer
        return result

    def _join_relay(self, condition: Condition, mesh: Mesh, root: MeshNode) -> bool:
        members = {*mesh.list_cut_off(root.device), condition.subject.number}
        self._conditions.load_subjects([*members, root.device])
        known = self._conditions.find(Subject(Rule.RELAY_LOST, root.device))
        is_open = known is not None and known.is_member
        if (
            not is_open
            and members == {root.device}
            and not mesh.is_lost(root.device)
            and not count_moved(self._connection, mesh, root.device)
        ):
            return False
        opens_at = root.silent_since + self._times.relay_lost
        if not is_open and root.state is NodeState.SILENT and root.silent_since <= self._now < opens_at:
            condition.due = opens_at
            return True
        self._open_alarm(mesh, root, members)
        return True

    def _open_alarm(self, mesh: Mesh, root: MeshNode, members: set[int]) -> None:
        """Make all devices that a lost relay cuts off members of its alarm, and the relay itself."""
        scope = f"relay:{root.device:012x}"
        group = AlarmGroup(Rule.RELAY_LOST, RELAY_CAUSE, root.gateway or mesh.gateway, scope)
        cut_off = len(members - {root.device})
        severity = Severity.CRITICAL if cut_off >= MANY_CUT_OFF else Severity.WARNING
        subject = Subject(Rule.RELAY_LOST, root.device)
        condition = self._conditions.find(subject)
        if condition is None or not condition.is_member:
            is_silent = root.state is NodeState.SILENT
            since = root.silent_since if is_silent else min(mesh.nodes[each].silent_since for each in members)
            condition = self._conditions.add(
                Condition(subject, root.device, group.gateway, ConditionState.PENDING, since=since, due=None)
                if condition is None
                else condition
            )
            condition.mark_faulty(since, None)
            self._alarms.join(condition, group, severity)
        elif condition.state is ConditionState.CLEARING:
            condition.mark_faulty(condition.since, None)
            self._alarms.touch(condition)
        for each in sorted(members | {root.device}):
            self._add_member(each, group, severity, is_root=each == root.device)

    def _add_member(self, device: int, group: AlarmGroup, severity: Severity, *, is_root: bool) -> None:
        if not is_root:
            # It was thought to be the topmost one before that was found to be lost, too.
            self._remove_root(Subject(Rule.RELAY_LOST, device))
        condition = self._conditions.find(Subject(Rule.DEVICE_OFFLINE, device))
        if condition is None:
            return
        if condition.state is ConditionState.PENDING:
            self._alarms.join(condition, group, severity)
        elif condition.state is ConditionState.ACTIVE:
            self._alarms.merge(condition, group)

    def _remove_root(self, subject: Subject) -> None:
        condition = self._conditions.find(subject)
        if condition is not None and condition.is_member:
            self._alarms.touch(condition, EndReason.MERGED)
            self._conditions.remove(condition)

    def _join_burst(self, condition: Condition, mesh: Mesh) -> bool:
        """Join devices that stopped at about the same time without a common relay."""
        device, window = condition.subject.number, self._times.burst_window
        alone = mesh.list_alone()
        since = alone.get(device)
        if since is None:
            return False
        near = {each: time for each, time in alone.items() if abs(time - since) <= window}
        if len(near) < MIN_BURST:
            return False
        self._conditions.load_subjects(list(near))
        stopped = {each: time for each, time in near.items() if self._is_missed(each)}
        together = find_burst(stopped, device, window)
        percent = 100 * len(together) // max(1, len(together) + mesh.count_connected())
        if len(together) < MIN_BURST or percent < BURST_PERCENT:
            return False
        group = AlarmGroup(Rule.DEVICE_OFFLINE, BURST_CAUSE, mesh.gateway)
        severity = Severity.CRITICAL if percent >= CRITICAL_BURST_PERCENT else Severity.WARNING
        times = [stopped[each] for each in together]
        facts = {"spread": max(times) - min(times)}
        for each in together:
            member = self._conditions.find(Subject(Rule.DEVICE_OFFLINE, each))
            if member is not None and member.state is ConditionState.PENDING:
                self._alarms.join(member, group, severity, facts)
        for each in together:  # afterwards: the alarm is open now
            member = self._conditions.find(Subject(Rule.DEVICE_OFFLINE, each))
            if member is not None and member.state is ConditionState.ACTIVE:
                self._alarms.merge(member, group)
        return True

    def _is_missed(self, device: int) -> bool:
        """Return whether a device has or would soon have an alarm: it is not one that often is away."""
        condition = self._conditions.find(Subject(Rule.DEVICE_OFFLINE, device))
        if condition is None or condition.state is ConditionState.CLEARING:
            return False
        if condition.state is ConditionState.ACTIVE:
            return condition.cause != RELAY_CAUSE
        return condition.due is not None and condition.due <= self._now + self._times.burst_window

    def _join_unknown(self, condition: Condition, mesh: Mesh, relay: int | None, cause: DeviceCause) -> bool:
        """Join devices behind a relay that answers although most of its children are silent."""
        if relay is None or cause is not DeviceCause.NO_WARNING:
            return False
        scope = f"relay:{relay:012x}"
        group = AlarmGroup(Rule.DEVICE_OFFLINE, UNKNOWN_CAUSE, mesh.gateway, scope)
        facts = {"relay": mac_from_int(relay), "certainty": str(Certainty.LIKELY)}
        self._alarms.join(condition, group, Severity.WARNING, facts)
        return True

    # Relays that are back

    def check_roots(self) -> None:
        """Find out which lost relays are back, were lost again, or are gone."""
        for row in bulk.query_rows(self._connection, _SELECT_ABANDONED, ()):
            self._release_members(row[0], self._now, EndReason.DELETED)
        roots = self._conditions.load_rule(Rule.RELAY_LOST)
        if not roots:
            return
        nodes = load_nodes(self._connection, [each.subject.number for each in roots], self._now, self._times)
        for each in roots:
            if (node := nodes.get(each.subject.number)) is not None:
                self._check_root(each, node)

    def _check_root(self, root: Condition, node: MeshNode) -> None:
        if node.state is NodeState.GATEWAY:
            if root.alarm is not None:
                self._release_members(root.alarm, self._now, EndReason.RELEASED)
            self._conditions.remove(root)
        elif root.state is ConditionState.CLEARING:
            returned_at = self._compute_return(root)
            if node.state is NodeState.SILENT:
                root.mark_faulty(root.since, None)
                self._alarms.touch(root)
            elif self._now >= returned_at + self._times.return_check and root.alarm is not None:
                self._release_members(root.alarm, returned_at, EndReason.WELL)
        elif node.state is NodeState.CONNECTED and self._is_back(root, node):
            root.mark_well(self._now, self._times.relay_back)
            self._alarms.touch(root)

    def _is_back(self, root: Condition, node: MeshNode) -> bool:
        """Return whether a relay that counts as connected is not lost any more.

        One that was found by its silent children was connected all the time: it must be heard again, or all
        that it cut off must be back.
        """
        if any(root.since < each <= self._now for each in (node.silent_since, node.heard_at)):
            return True
        members = [] if root.alarm is None else self._conditions.load_alarm(root.alarm)
        return not any(
            each.state is ConditionState.ACTIVE and each.subject.rule is Rule.DEVICE_OFFLINE
            for each in members
        )

    def _compute_return(self, root: Condition) -> int:
        return (root.due or self._now) - root.compute_watch_time(self._times.relay_back)

    def end(self, root: Condition) -> None:
        """Let the members of an alarm whose relay is back leave it. Call this before its condition ends."""
        if root.alarm is not None:
            self._release_members(root.alarm, self._compute_return(root), EndReason.WELL)

    def _release_members(self, alarm: int, returned_at: int, reason: EndReason) -> None:
        """Let the devices of an alarm leave it: those that stay away get the time of a return to report."""
        members = [
            each for each in self._conditions.load_alarm(alarm) if each.subject.rule is Rule.DEVICE_OFFLINE
        ]
        away = [each for each in members if each.state is ConditionState.ACTIVE]
        self._alarms.touch_alarm(alarm, reason)
        self._alarms.add_missing(alarm, len(away))
        nodes = load_nodes(self._connection, [each.subject.number for each in away], self._now, self._times)
        for each in members:
            if each.state is not ConditionState.ACTIVE:
                each.end(self._now)
                continue
            interval = 0 if (node := nodes.get(each.subject.number)) is None else node.interval
            grace = max(self._times.return_check, min(MISSED_HEARTBEATS * interval, self._times.return_max))
            due = self._now if reason is not EndReason.WELL else max(self._now, returned_at + grace)
            each.detach(each.since, due)

    # Facts

    def store_facts(self) -> None:
        """Store what the sentences of changed alarms say. The conditions must be saved before."""
        for record in self._alarms.list_touched(Rule.RELAY_LOST):
            relay = record.relay
            root = None if relay is None else self._conditions.find(Subject(Rule.RELAY_LOST, relay))
            if relay is None or record.gateway is None or root is None or not root.is_at_fault:
                continue  # what was true while it was lost stays in the sentence
            mesh = self._get_mesh(record.gateway)
            if (node := mesh.nodes.get(relay)) is not None and node.state is not NodeState.UNKNOWN:
                record.change_facts(self._collect_facts(mesh, node))

    def _collect_facts(self, mesh: Mesh, relay: MeshNode) -> dict[str, Any]:
        percent = mesh.compute_silent_percent(relay.device)
        is_certain = relay.state is NodeState.SILENT if percent is None else percent >= CERTAIN_PERCENT
        return {
            "relay": mac_from_int(relay.device),
            "moved": count_moved(self._connection, mesh, relay.device),
            "certainty": str(Certainty.CERTAIN if is_certain else Certainty.LIKELY),
        }
