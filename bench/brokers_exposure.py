"""Acknowledged messages that mosquitto loses when it is killed.

python -m bench.brokers_exposure [--tries N]

Gateways publish at QoS 1 and at a fixed rate through mosquitto to the service's client of external brokers;
its consumer keeps the messages in memory. At a random moment mosquitto is killed with SIGKILL and started
again. Messages that were acknowledged and never received are lost.

All settings are tried concurrently, each with its own mosquitto.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from signal import SIGKILL
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from tests.servers import Mosquitto

from meshfleet.mqtt.client import BrokerAddress, ExponentialBackoff, MqttClient, MqttOptions
from meshfleet.service.external_broker.client import ExternalBrokerClient, build_link_options
from meshfleet.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from meshfleet.mqtt.broker import ReportBatch

SETTINGS: Final = {
    "none": ("persistence false",),
    "autosave_interval 1800": ("persistence true",),
    "autosave_interval 10": ("persistence true", "autosave_interval 10"),
    "autosave_interval 1": ("persistence true", "autosave_interval 1"),
    "on changes, 1000": ("persistence true", "autosave_on_changes true", "autosave_interval 1000"),
    "on changes, 1": ("persistence true", "autosave_on_changes true", "autosave_interval 1"),
}
QUEUES: Final = ("max_inflight_messages 2000", "max_queued_messages 0")

GATEWAYS: Final = 4
RATE: Final = 50
"""Reports per second and gateway."""

SHORTEST, LONGEST = 4.0, 14.0
"""Range of seconds until the kill; the maximum is longer than most intervals between two saves."""

QUIET_SECONDS: Final = 3.0
"""Seconds without a report after which no more are expected."""

_LINK_OPTIONS = MqttOptions(backoff=ExponentialBackoff(initial=0.2, maximum=1.0), retry_first_connect=True)


class TrialLosses(NamedTuple):
    """Lost messages of one trial."""

    acknowledged: int
    lost_before_kill: int
    """Lost messages that were acknowledged before the kill."""
    lost_after_restart: int
    """Lost messages that were acknowledged after the restart of mosquitto."""


class CollectingConsumer:
    """Consumer that keeps all payloads in memory."""

    def __init__(self) -> None:
        self.received: set[bytes] = set()

    async def commit(self, batch: ReportBatch) -> None:
        """Keep the payloads of a batch."""
        self.received |= {message.payload for message in batch.messages}


class NumberPublisher:
    """Gateway that publishes numbers, and records which were acknowledged before and after the kill."""

    def __init__(self, address: BrokerAddress, name: str) -> None:
        self.before: set[bytes] = set()
        self.after: set[bytes] = set()
        self.is_after = False
        self._link = MqttClient(address, name, options=_LINK_OPTIONS)
        self._name = name

    async def run(self) -> None:
        """Publish at the fixed rate until canceled, then wait for pending acknowledgments."""
        topic = f"mt/gateway/{self._name}/device/{self._name}/measurement/8800"
        async with self._link, asyncio.TaskGroup() as tasks:
            with suppress(asyncio.CancelledError):
                for number in count():
                    tasks.create_task(self._publish(topic, f"{self._name} {number}".encode()))
                    await asyncio.sleep(1 / RATE)

    async def _publish(self, topic: str, payload: bytes) -> None:
        await self._link.publish(topic, payload)
        (self.after if self.is_after else self.before).add(payload)


class MosquittoTrial:
    """Mosquitto with one of the settings, and a service with a persistent session."""

    def __init__(self, folder: Path, settings: Sequence[str]) -> None:
        self._mosquitto = Mosquitto(folder, *settings, *QUEUES)
        host, port = self._mosquitto.address
        self._address = BrokerAddress(host=host, port=port)
        self._consumer = CollectingConsumer()
        self._names = (f"02005e{number:06x}" for number in count(1))

    async def __aenter__(self) -> Self:
        """Create the service's session, and restart mosquitto so that the session is saved."""
        await asyncio.to_thread(self._mosquitto.start)
        async with self._service():
            pass
        await asyncio.to_thread(self._mosquitto.stop)
        await asyncio.to_thread(self._mosquitto.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._mosquitto.stop)

    async def run(self, *, connected: bool) -> TrialLosses:
        """Kill mosquitto under load, with the service connected or not. Return the losses."""
        gateways = [NumberPublisher(self._address, next(self._names)) for _ in range(GATEWAYS)]
        if connected:
            async with self._service():
                await self._kill_under_load(gateways)
                await self._settle()
        else:
            await self._kill_under_load(gateways)
            async with self._service():
                await self._settle()
        before = set().union(*(each.before for each in gateways))
        after = set().union(*(each.after for each in gateways))
        received = self._consumer.received
        return TrialLosses(len(before) + len(after), len(before - received), len(after - received))

    async def _kill_under_load(self, gateways: Sequence[NumberPublisher]) -> None:
        running = [asyncio.create_task(each.run()) for each in gateways]
        await asyncio.sleep(random.uniform(SHORTEST, LONGEST))  # noqa: S311 # not for cryptography
        await asyncio.to_thread(self._mosquitto.stop, SIGKILL)
        await asyncio.sleep(0.05)  # its last acknowledgments are received by now
        for each in gateways:
            each.is_after = True
        await asyncio.to_thread(self._mosquitto.start)
        await asyncio.sleep(2.0)
        for task in running:
            task.cancel()
        await asyncio.gather(*running)

    async def _settle(self) -> None:
        count_before = -1
        while count_before < len(self._consumer.received):
            count_before = len(self._consumer.received)
            await asyncio.sleep(QUIET_SECONDS)

    @asynccontextmanager
    async def _service(self) -> AsyncIterator[None]:
        client = ExternalBrokerClient(
            self._address,
            "meshfleet",
            prefix="",
            options=build_link_options(Settings()),
        )
        running = asyncio.create_task(client.run(self._consumer))
        while client.problem is not None:  # noqa: ASYNC110 # it has no event to wait for
            await asyncio.sleep(0.01)
        yield
        running.cancel()
        await asyncio.wait([running])


async def _measure(name: str, tries: int, found: dict[tuple[str, bool], list[TrialLosses]]) -> None:
    with TemporaryDirectory(prefix="meshfleet-bench-") as folder:
        async with MosquittoTrial(Path(folder), SETTINGS[name]) as trial:
            for number in range(2 * tries):
                connected = number % 2 == 0
                found[name, connected].append(await trial.run(connected=connected))


async def _measure_all(tries: int) -> dict[tuple[str, bool], list[TrialLosses]]:
    found: defaultdict[tuple[str, bool], list[TrialLosses]] = defaultdict(list)
    async with asyncio.TaskGroup() as tasks:
        for name in SETTINGS:
            tasks.create_task(_measure(name, tries, found))
    return found


def main() -> None:
    """Run the trials of all settings, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.brokers_exposure")
    parser.add_argument(
        "--tries", type=int, default=5, help="trials per setting, with the service connected and disconnected"
    )
    found = asyncio.run(_measure_all(parser.parse_args().tries))
    print(f"{GATEWAYS} gateways, {RATE} reports per second each, killed after {SHORTEST:g} to {LONGEST:g} s")
    print("| settings | service | acknowledged | lost before the kill: median, maximum | lost after it |")
    print("|---|---|---|---|---|")
    for name in SETTINGS:
        for connected in (True, False):
            print(_row(name, found[name, connected], connected=connected))


def _row(name: str, tries: Sequence[TrialLosses], *, connected: bool) -> str:
    acknowledged, before, after = zip(*tries, strict=True)
    cells = [
        name,
        "connected" if connected else "disconnected",
        f"{min(acknowledged)} to {max(acknowledged)}",
        f"{statistics.median(before):g}, {max(before)}",
        f"{statistics.median(after):g}, {max(after)}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
