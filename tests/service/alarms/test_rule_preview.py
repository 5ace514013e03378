"""Previews of rules: they agree with what the live evaluation does with the same samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors import InvalidRequest
from meshfleet.rest.alarm_rules import RuleOperator
from meshfleet.service.alarms.rules import Rule
from meshfleet.service.alarms.user_rules.definition import UserRule
from meshfleet.service.alarms.user_rules.preview import judge, preview_rule
from meshfleet.service.alarms.user_rules.state_machine import Threshold
from meshfleet.service.alarms.user_rules.tracker import Observation, Scope, WatchedRule
from tests.service.alarms.rule_harness import RuleHarness, build_rule
from tests.service.ingest.ingest_harness import MINUTE, NOON
from tests.service.ingest.messages import D, E

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio


@pytest.fixture
def harness(database: Database, tmp_path: Path) -> Iterator[RuleHarness]:
    found = RuleHarness(database, tmp_path)
    yield found
    found.close()


def to_user_rule(**changes: Any) -> UserRule:
    return UserRule(1, Rule.MEASUREMENT, build_rule(**changes), True, 1, 1, False)  # noqa: FBT003


STEPS = st.lists(
    st.tuples(st.sampled_from([-20, -18, -16, -14, -10, "warm", True]), st.integers(1, 12)), max_size=60
)


@given(STEPS, st.sampled_from([0, 300, 900]), st.sampled_from([0, 300, 900]))
def test_a_preview_finds_what_the_live_evaluation_finds(
    steps: list[tuple[Any, int]], wait: int, back: int
) -> None:
    rule = to_user_rule(forSeconds=wait, clearSeconds=back)
    time, observations = NOON, []
    for value, minutes in steps:
        time += minutes * MINUTE
        observations.append(Observation(time, value))
    live = WatchedRule(rule, Scope(), {})
    openings, was_member = 0, False
    for each in observations:
        live.observe(1, each)
        if 1 in live.candidates:  # the evaluation looks up the newest sample, which is this one
            live.candidates.clear()
            live.feed(1, each)
        judgment = live.judgments.get(1)
        is_member = judgment is not None and judgment.is_member
        openings += is_member and not was_member
        was_member = is_member
    history = judge(rule, observations)
    assert len(history.memberships) == openings
    assert history.judgment == live.judgments.get(1)


@pytest.mark.rule("rest-288")
async def test_a_preview_agrees_with_what_was_stored(harness: RuleHarness) -> None:
    await harness.add_rule()
    await harness.report(-20, *[-14] * 6, *[-18] * 4, *[-12] * 5)
    found = await preview_rule(harness.database, harness.ingest.store, build_rule(), now=harness.now)
    opened = [kind for _, kind in harness.told() if kind != "cleared"]
    assert found.would_have_opened == len(opened) == 2
    assert (found.matches, found.scope_size, found.checked, found.exact) == (1, 1, 1, True)
    newest, oldest = found.examples
    assert (newest.until, newest.peak, oldest.peak) == (None, -12, -14)
    assert oldest.since == "2023-11-15T12:10:00.000Z"
    assert oldest.until == "2023-11-15T12:45:00.000Z"
    assert found.sentence.endswith("In the last 7 days this would have raised 2 alarms (1 device checked).")


@pytest.mark.rule("rest-288")
async def test_a_preview_says_what_it_has_looked_at(
    harness: RuleHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.report(-10)
    await harness.report(-10, device=E)
    harness.attach("Freezer", D)
    scope = {"labels": ["Freezer"]}
    rule = build_rule(scope=scope, forSeconds=0)
    found = await preview_rule(harness.database, harness.ingest.store, rule, now=harness.now)
    assert (found.scope_size, found.checked, found.would_have_opened) == (1, 1, 1)
    assert [each.device for each in found.examples] == [f"bmac-{D}"]
    monkeypatch.setattr("meshfleet.service.alarms.user_rules.preview._MAX_DEVICES", 1)
    rule = build_rule(forSeconds=0, scope={"exceptLabels": ["Freezer"]})
    found = await preview_rule(harness.database, harness.ingest.store, rule, now=harness.now)
    assert [each.device for each in found.examples] == [f"bmac-{E}"]
    rule = build_rule(forSeconds=0)
    found = await preview_rule(harness.database, harness.ingest.store, rule, now=harness.now)
    assert (found.scope_size, found.checked, found.exact) == (2, 1, False)
    assert "1 device of 2" in found.sentence
    silent = {"identifier": "temperature", "operator": "silent-for", "value": 3600}
    with pytest.raises(InvalidRequest, match="what is missing is not stored"):
        await preview_rule(
            harness.database, harness.ingest.store, build_rule(when=silent, scope=scope), now=harness.now
        )
    label = build_rule(kind="label-offline", when=None, label="Freezer", sharePercent=30)
    found = await preview_rule(harness.database, harness.ingest.store, label, now=harness.now)
    assert (found.scope_size, found.matches, found.exact) == (1, 1, False)


def test_values_that_are_no_numbers_cannot_be_compared() -> None:
    above = Threshold(RuleOperator.ABOVE, 5)
    for value in (None, True, "9", float("nan"), float("inf")):
        assert above.is_bad(value, None) is None
    equals = Threshold(RuleOperator.EQUALS, 1)
    assert [equals.is_bad(value, None) for value in (1, 1.0, True, "1", None)] == [
        True,
        True,
        False,
        False,
        None,
    ]
