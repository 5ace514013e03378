"""Gateways that come and go: few messages, and no real outage stays hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.databases import fresh_database
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.alarms.presence_log import PresenceLog

if TYPE_CHECKING:
    import pytest

FOR = 5 * MINUTE
"""Seconds for which a gateway must be away."""


def toggle(log: PresenceLog, gateway: str, off: int, on: int, duration: int) -> None:
    """Let a gateway come and go for some time."""
    for _ in range(0, duration, off + on):
        log.set_gateway(gateway, connected=False)
        log.run(off)
        log.set_gateway(gateway, connected=True)
        log.run(on, step=30 if on < HOUR else 600)


def test_a_gateway_that_is_away_for_a_minute_and_a_half_is_not_offline(log: PresenceLog) -> None:
    gateway, _ = log.add_gateway(1)
    log.add_gateway(2)
    toggle(log, gateway, 90, 90, 2 * HOUR)
    assert log.told() == [("gateway-unstable", "opened")]


def test_a_gateway_that_comes_and_goes_for_hours_causes_few_messages(log: PresenceLog) -> None:
    gateway, _ = log.add_gateway(1)
    log.add_gateway(2)
    toggle(log, gateway, 6 * MINUTE, 6 * MINUTE, 6 * HOUR)
    assert len(log.told()) <= 3
    log.set_gateway(gateway, connected=False)
    log.run(10 * MINUTE)
    (alarm,) = log.alarms()
    assert (alarm.state, alarm.recovering_since) == ("open", None)
    assert log.told()[-1] == ("gateway-offline", "reopened")


def test_an_outage_on_another_day_is_told_and_cleared_at_once(log: PresenceLog) -> None:
    gateway, _ = log.add_gateway(1)
    log.add_gateway(2)
    for _ in range(2):
        toggle(log, gateway, 10 * MINUTE, 25 * HOUR, 1)
    assert log.told() == 2 * [("gateway-offline", "opened"), ("gateway-offline", "cleared")]
    assert log.conditions() == {}


@given(
    st.lists(
        st.tuples(st.integers(1, 90), st.integers(1, 300)).map(
            lambda minutes: (MINUTE * minutes[0], MINUTE * minutes[1])
        ),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=3)
def test_every_outage_is_covered_by_an_alarm_that_was_told(
    request: pytest.FixtureRequest, outages: list[tuple[int, int]]
) -> None:
    log = PresenceLog(fresh_database(request, "sqlite"))
    gateway, _ = log.add_gateway(1)
    log.add_gateway(2)
    for off, on in outages:
        log.set_gateway(gateway, connected=False)
        log.run(off, step=60)
        if off > FOR:
            (alarm,) = [each for each in log.alarms(state="open") if each.rule == "gateway-offline"]
            assert alarm.recovering_since is None
            told = [kind for rule, kind in log.told() if rule == "gateway-offline"]
            assert told[-1] in {"opened", "reopened"}
        log.set_gateway(gateway, connected=True)
        log.run(on, step=60)
    assert len(log.told()) <= 2 * len(outages)
    log.run(9 * HOUR, step=600)
    assert log.alarms(state="open") == []
