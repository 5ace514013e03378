"""Whatever happens to a client and to the service, what was promised is kept."""

from __future__ import annotations

import asyncio
import shutil
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from meshfleet.db import Database
from meshfleet.db import sqlite as in_file
from meshfleet.mqtt.broker_limits import BrokerLimits
from tests.mqtt.broker.delivery_model import ELSEWHERE, FILTERS, DeliveryModel
from tests.mqtt.broker.messages import TOPIC
from tests.mqtt.broker.running_broker import RunningBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

WINDOW = 3
"""Messages in flight: few, so that others wait."""

there = precondition(lambda self: self.promises.is_connected)
filters = st.sampled_from(sorted(FILTERS))


class Fates(RuleBasedStateMachine):
    """All that may happen, in any order."""

    def __init__(self, path: Path, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        super().__init__()
        self._runner = asyncio.Runner(loop_factory=loop)
        self._database = Database(in_file.create_sqlite_engines(path))
        self._failed = False

    def _do(self, deed: Coroutine[Any, Any, None]) -> None:
        try:
            self._runner.run(deed)
        except BaseException:
            self._failed = True
            raise

    @initialize(qos=st.sampled_from([0, 1]))
    def begin(self, qos: int) -> None:
        self._do(self._begin(qos))

    async def _begin(self, qos: int) -> None:
        self._stage = RunningBroker(self._database, BrokerLimits(in_flight=WINDOW))
        self.promises = DeliveryModel(self._stage, WINDOW)
        await self._stage.start()
        await self.promises.start()
        await self.promises.subscribe(TOPIC, qos)

    @rule(topic=st.sampled_from([TOPIC, ELSEWHERE]), number=st.integers(1, 2 * WINDOW))
    def publish(self, topic: str, number: int) -> None:
        self._do(self.promises.publish(topic, number))

    @there
    @rule(wanted=filters, qos=st.sampled_from([0, 1, 1]))
    def subscribe(self, wanted: str, qos: int) -> None:
        self._do(self.promises.subscribe(wanted, qos))

    @there
    @rule(wanted=filters)
    def unsubscribe(self, wanted: str) -> None:
        self._do(self.promises.unsubscribe(wanted))

    @there
    @rule(places=st.lists(st.integers(0, 2 * WINDOW), unique=True, min_size=1), wait=st.booleans())
    def acknowledge(self, places: list[int], *, wait: bool) -> None:
        self._do(self.promises.acknowledge(places, wait=wait))

    @there
    @rule(noticed=st.booleans())
    def cut(self, *, noticed: bool) -> None:
        self._do(self.promises.cut(noticed=noticed))

    @rule()
    def connect(self) -> None:
        self._do(self.promises.connect())

    @rule()
    def restart(self) -> None:
        self._do(self.promises.restart())

    @rule()
    def kill(self) -> None:
        self._do(self.promises.kill())

    def teardown(self) -> None:
        try:
            if not self._failed:
                self._do(self.promises.settle())
        finally:
            self._runner.run(self._stage.stop())
            self._runner.close()
            self._database.close()


def _search(
    sqlite_template: Path, tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], examples: int
) -> None:
    numbers = count()

    def fates() -> Fates:
        path = tmp_path / f"{next(numbers)}.sqlite"
        shutil.copy(sqlite_template, path)
        return Fates(path, loop)

    run_state_machine_as_test(
        fates,  # type: ignore[arg-type] # it only calls it
        settings=settings(max_examples=examples, stateful_step_count=30, deadline=None),
    )


def test_what_was_promised_is_kept(sqlite_template: Path, tmp_path: Path) -> None:
    _search(sqlite_template, tmp_path, asyncio.new_event_loop, 20)


@pytest.mark.part("fuzz")
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_what_was_promised_is_kept_over_a_long_search(
    sqlite_template: Path, tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    _search(sqlite_template, tmp_path, loop, 200)
