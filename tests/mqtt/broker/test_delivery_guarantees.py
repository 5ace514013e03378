"""The broker keeps its delivery guarantees whatever happens to a client and to the service."""

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

from meshfleet.db import Database, sqlite
from meshfleet.mqtt.broker_limits import BrokerLimits
from tests.mqtt.broker.delivery_model import ELSEWHERE, FILTERS, DeliveryModel
from tests.mqtt.broker.messages import TOPIC
from tests.mqtt.broker.running_broker import RunningBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

WINDOW = 3
"""Messages in flight: few, so that others have to wait."""

if_connected = precondition(lambda self: self.model.is_connected)
filters = st.sampled_from(sorted(FILTERS))


class DeliverySteps(RuleBasedStateMachine):
    """All events that may happen, in any order."""

    def __init__(self, path: Path, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        super().__init__()
        self._runner = asyncio.Runner(loop_factory=loop)
        self._database = Database(sqlite.create_sqlite_engines(path))
        self._failed = False

    def _run(self, step: Coroutine[Any, Any, None]) -> None:
        try:
            self._runner.run(step)
        except BaseException:
            self._failed = True
            raise

    @initialize(qos=st.sampled_from([0, 1]))
    def begin(self, qos: int) -> None:
        self._run(self._begin(qos))

    async def _begin(self, qos: int) -> None:
        self._server = RunningBroker(self._database, BrokerLimits(in_flight=WINDOW))
        self.model = DeliveryModel(self._server, WINDOW)
        await self._server.start()
        await self.model.start()
        await self.model.subscribe(TOPIC, qos)

    @rule(topic=st.sampled_from([TOPIC, ELSEWHERE]), number=st.integers(1, 2 * WINDOW))
    def publish(self, topic: str, number: int) -> None:
        self._run(self.model.publish(topic, number))

    @if_connected
    @rule(topic_filter=filters, qos=st.sampled_from([0, 1, 1]))
    def subscribe(self, topic_filter: str, qos: int) -> None:
        self._run(self.model.subscribe(topic_filter, qos))

    @if_connected
    @rule(topic_filter=filters)
    def unsubscribe(self, topic_filter: str) -> None:
        self._run(self.model.unsubscribe(topic_filter))

    @if_connected
    @rule(indexes=st.lists(st.integers(0, 2 * WINDOW), unique=True, min_size=1), wait=st.booleans())
    def acknowledge(self, indexes: list[int], *, wait: bool) -> None:
        self._run(self.model.acknowledge(indexes, wait=wait))

    @if_connected
    @rule(noticed=st.booleans())
    def cut(self, *, noticed: bool) -> None:
        self._run(self.model.cut(noticed=noticed))

    @rule()
    def connect(self) -> None:
        self._run(self.model.connect())

    @rule()
    def restart(self) -> None:
        self._run(self.model.restart())

    @rule()
    def kill(self) -> None:
        self._run(self.model.kill())

    def teardown(self) -> None:
        try:
            if not self._failed:
                self._run(self.model.settle())
        finally:
            self._runner.run(self._server.stop())
            self._runner.close()
            self._database.close()


def _run_random_steps(
    sqlite_template: Path, tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], examples: int
) -> None:
    numbers = count()

    def create_steps() -> DeliverySteps:
        path = tmp_path / f"{next(numbers)}.sqlite"
        shutil.copy(sqlite_template, path)
        return DeliverySteps(path, loop)

    run_state_machine_as_test(
        create_steps,  # type: ignore[arg-type] # it is only called
        settings=settings(max_examples=examples, stateful_step_count=30, deadline=None),
    )


def test_delivery_guarantees_hold_for_random_events(sqlite_template: Path, tmp_path: Path) -> None:
    _run_random_steps(sqlite_template, tmp_path, asyncio.new_event_loop, 20)


@pytest.mark.part("fuzz")
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_delivery_guarantees_hold_for_many_random_events(
    sqlite_template: Path, tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    _run_random_steps(sqlite_template, tmp_path, loop, 200)
