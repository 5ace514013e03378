"""Errors in watches: a defect in one does not stop the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.exc import DBAPIError

from meshfleet.db import bulk
from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.protocol import MalformedVersion
from meshfleet.service.alarms import engine
from meshfleet.service.alarms.rules import Rule
from meshfleet.service.alarms.watches.registry import WATCHES
from meshfleet.service.alarms.watches.service import BROKER
from meshfleet.service.alarms.watches.watch import ServiceFacts
from tests.service.alarms.alarm_harness import MINUTE
from tests.service.alarms.test_watches import list_alarms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from meshfleet.service.alarms.watches.watch import Fault, Sight, Watch
    from tests.service.alarms.presence_log import PresenceLog


def evaluate(log: PresenceLog, failing: set[Rule], *watches: Watch) -> None:
    log.now += 30_000
    log.database.write_now(
        engine.evaluate, log.now, log.times, watches=watches, service=log.service, failing=failing
    )


def break_watch(watch: Watch, error: Exception) -> Watch:
    """Return a watch that raises an error after its last fault."""

    def find(sight: Sight) -> Iterator[Fault]:
        yield from watch.find(sight) or ()
        raise error

    return watch._replace(find=find)


@pytest.mark.parametrize("error", [TypeError("defect"), MalformedVersion("version", "is wrong")])
def test_a_defect_in_one_watch_is_logged_once_and_changes_nothing(
    log: PresenceLog, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    log.service = ServiceFacts(broker_failing_since=log.now)
    gateway, _ = log.add_gateway(1)
    log.run(3 * MINUTE)
    assert [rule for rule, _, _ in list_alarms(log)] == ["broker"]
    log.service = ServiceFacts()
    log.set_gateway(gateway, connected=False)
    failing: set[Rule] = set()
    others = [each for each in WATCHES.values() if each.rule is not Rule.BROKER]
    for _ in range(12):
        evaluate(log, failing, break_watch(BROKER, error), *others)
    assert sorted(rule for rule, _, _ in list_alarms(log)) == ["broker", "gateway-offline"]
    assert [each.getMessage() for each in caplog.records] == [
        "alarms of the rule broker cannot be evaluated: internal error; other rules are not affected"
    ]
    assert failing == {Rule.BROKER}
    for _ in range(4):
        evaluate(log, failing, BROKER, *others)
    assert (failing, [rule for rule, _, _ in list_alarms(log)]) == (set(), ["gateway-offline"])


def raise_unavailable(_sight: Sight) -> Any:
    raise DatabaseUnavailable("disk full")


def query_nothing(sight: Sight) -> Any:
    return bulk.query_rows(sight.connection, "SELECT 1 FROM nothing", ())


@pytest.mark.both_databases
@pytest.mark.parametrize("find", [raise_unavailable, query_nothing])
def test_errors_of_the_database_end_the_evaluation(log: PresenceLog, find: Callable[[Sight], Any]) -> None:
    failing: set[Rule] = set()
    with pytest.raises((DatabaseUnavailable, DBAPIError)):
        evaluate(log, failing, BROKER._replace(find=find))
    assert not failing
