"""State of a rule of a user for one device, moved by its samples alone. Nothing here knows the present time.

Times are those of samples. So a device that sends nothing changes nothing: without samples no alarm opens or
ends. The same functions judge samples when they arrive, and those of the last days in a preview.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from meshfleet.rest.alarm_rules import RuleOperator
from meshfleet.service.alarms.conditions import ConditionState, compute_watch_time
from meshfleet.service.alarms.rules import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.rest.alarm_rules import RuleCondition

Value: TypeAlias = float | int | bool | str

_MEMBERS: Final = frozenset({ConditionState.ACTIVE, ConditionState.CLEARING})


class Timing(NamedTuple):
    """Time for which a fault must last, and for which it must be gone, in milliseconds."""

    wait: int
    back: int


@dataclass(slots=True)
class Judgment:
    """State of a rule for a device. Without one, the device is well. Times are those of samples."""

    state: ConditionState
    since: int
    """Time at which the fault began."""
    seen: int
    """Time of the newest sample that was judged."""
    value: Value | None
    """Value of that sample."""
    peak: Value | None
    """Worst value since the fault began."""
    back_at: int | None = None
    """Time since which all is well, or was before the fault was forgotten; None while it is not."""
    opens: int = 0
    """How often the device became a member of an alarm, until `remembered_until`."""
    remembered_until: int | None = None

    @property
    def is_member(self) -> bool:
        """Whether the device belongs to an alarm."""
        return self.state in _MEMBERS


class Step(NamedTuple):
    """Sample as a rule sees it."""

    time: int
    value: Value | None
    is_bad: bool


def advance(judgment: Judgment | None, step: Step, timing: Timing, threshold: Threshold) -> Judgment | None:
    """Return the judgment after a sample. The one that is passed in is changed.

    A sample that is not newer than the last one changes nothing: it comes from the memory of a device.
    """
    if judgment is None:
        return _begin(step, timing, opens=0, remembered_until=None, threshold=threshold)
    if step.time <= judgment.seen:
        return judgment
    judgment.seen, judgment.value = step.time, step.value
    if step.is_bad:
        return _continue_fault(judgment, step, timing, threshold)
    return _continue_well(judgment, step.time, timing)


def restart(judgment: Judgment) -> None:
    """Let the time that runs begin again with the last sample: meanwhile nothing was known of the device."""
    if judgment.state is ConditionState.ACTIVE:
        judgment.state = ConditionState.PENDING
        judgment.since = judgment.seen
        judgment.opens -= 1
    else:
        judgment.state = ConditionState.CLEARING
        judgment.back_at = judgment.seen
        judgment.remembered_until = None


def _begin(
    step: Step, timing: Timing, *, opens: int, remembered_until: int | None, threshold: Threshold
) -> Judgment | None:
    if not step.is_bad:
        return None
    begun = Judgment(
        ConditionState.PENDING,
        since=step.time,
        seen=step.time,
        value=step.value,
        peak=step.value,
        opens=opens,
        remembered_until=remembered_until,
    )
    return _continue_fault(begun, step, timing, threshold)


def _continue_fault(judgment: Judgment, step: Step, timing: Timing, threshold: Threshold) -> Judgment | None:
    match judgment.state:
        case ConditionState.QUIET:
            is_remembered = judgment.remembered_until is not None and step.time < judgment.remembered_until
            opens = judgment.opens if is_remembered else 0
            return _begin(
                step,
                timing,
                opens=opens,
                remembered_until=judgment.remembered_until if is_remembered else None,
                threshold=threshold,
            )
        case ConditionState.CLEARING:
            judgment.state, judgment.back_at = ConditionState.ACTIVE, None
        case ConditionState.PENDING if step.time - judgment.since >= timing.wait:
            judgment.state, judgment.remembered_until = ConditionState.ACTIVE, None
            judgment.opens += 1
        case _:
            pass
    judgment.peak = threshold.choose_worse(judgment.peak, step.value)
    return judgment


def _continue_well(judgment: Judgment, time: int, timing: Timing) -> Judgment | None:
    match judgment.state:
        case ConditionState.PENDING:
            if not judgment.opens:
                return None
            judgment.state = ConditionState.QUIET
        case ConditionState.QUIET:
            if judgment.remembered_until is None or time >= judgment.remembered_until:
                return None
        case _:
            if judgment.state is ConditionState.ACTIVE or judgment.back_at is None:
                judgment.state, judgment.back_at = ConditionState.CLEARING, time
            if time - judgment.back_at >= compute_watch_time(judgment.opens, timing.back):
                judgment.state = ConditionState.QUIET
                judgment.remembered_until = time + DAY_MS
    return judgment


class Threshold(NamedTuple):
    """Comparison of values with those of a rule."""

    operator: RuleOperator
    value: Value
    upper: float | int | None = None
    clear_value: float | int | None = None

    def is_bad(self, value: Value | None, judgment: Judgment | None) -> bool | None:
        """Return whether a value is a fault; None if it cannot be compared.

        A device that belongs to an alarm is well only beyond `clear_value`.
        """
        compare = _COMPARISONS.get(self.operator)
        if compare is None:
            return None if value is None else _is_equal(value, self.value)
        if value is None or isinstance(value, str | bool) or not isfinite(value):
            return None
        limit = self.value
        if self.clear_value is not None and judgment is not None and judgment.is_member:
            limit = self.clear_value
        return compare(value, limit, self.upper)  # type: ignore[arg-type] # checked when the rule was written

    def choose_worse(self, first: Value | None, second: Value | None) -> Value | None:
        """Return the worse of two values of a fault."""
        if self.operator not in _COMPARISONS or first is None or second is None:
            return second
        return max(first, second, key=self.measure)

    def measure(self, value: Value | None) -> float:
        """Return how far a value is beyond the threshold; 0 for what is no number."""
        if self.operator not in _COMPARISONS or value is None:
            return 0
        number, limit = float(value), float(self.value)
        if self.operator is RuleOperator.ABOVE:
            return number - limit
        if self.operator is RuleOperator.BELOW:
            return limit - number
        return max(limit - number, number - float(self.upper or 0))


def _is_equal(first: Value, second: Value) -> bool:
    """Compare values of equal types: in JSON, `true` is not 1."""
    is_boolean = isinstance(first, bool)
    return is_boolean == isinstance(second, bool) and first == second


def to_threshold(when: RuleCondition) -> Threshold:
    """Return the comparison of a rule."""
    return Threshold(when.operator, when.value, when.upper, when.clear_value)


_COMPARISONS: Final[Mapping[RuleOperator, Callable[[float, float, float | None], bool]]] = {
    RuleOperator.ABOVE: lambda value, limit, _upper: value > limit,
    RuleOperator.BELOW: lambda value, limit, _upper: value < limit,
    RuleOperator.OUTSIDE: lambda value, limit, upper: value < limit or value > (upper or 0),
}
"""Comparisons of numbers; all others are of any value."""
