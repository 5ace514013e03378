"""Probes of extenders through a real broker: what an answer means, and that there are few."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, select

from meshfleet.db.tables import alarm_condition
from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.protocol.topics import TopicCodec
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.alarms.probes import RelayProber
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.gateways import store as gateway_store
from meshfleet.service.requests.rpc import RpcClient
from tests.eventually import eventually_async
from tests.mqtt.broker.running_broker import G, RunningBroker
from tests.service.requests.scripted_gateway import connect_gateway

if TYPE_CHECKING:
    from meshfleet.db import Database
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage

pytestmark = pytest.mark.anyio

ANSWERS, UNREACHABLE, BY_GATEWAY = "c0ffee000001", "c0ffee000002", "c0ffee000003"
FIELDS: dict[str, dict[str, Any]] = {
    ANSWERS: {"value": "1800"},
    UNREACHABLE: {"status": 10},
    BY_GATEWAY: {"value": "1800", "origin": 32},
}


def respond(request: IncomingRequest) -> list[OutgoingMessage]:
    """Respond for the device that is read."""
    return [request.build_response(**FIELDS[request.topic_suffix.partition("/")[0]])]


def ask(broker: RunningBroker, *devices: str) -> None:
    """Store conditions with which evaluations ask for probes."""
    now = broker.clock()
    rows = [
        {
            "rule": "relay-probe",
            "subject": mac_to_int(Mac(each)),
            "device": mac_to_int(Mac(each)),
            "gateway": mac_to_int(Mac(G)),
            "state": "pending",
            "since": now + number,
            "due": now + 600_000,
            "cause": "",
            "opens": 0,
        }
        for number, each in enumerate(devices)
    ]
    observations = [DeviceObservation(device=Mac(each), at=now, heard=False) for each in devices]
    broker.database.write_now(registry.record_observations, observations)
    broker.database.write_now(lambda connection: connection.execute(insert(alarm_condition), rows))


def list_results(broker: RunningBroker) -> list[str]:
    """Return the stored results in the order in which they were asked for."""
    columns = alarm_condition.c
    query = select(columns.cause).where(columns.rule == "relay-probe").order_by(columns.subject)
    return broker.database.read_now(lambda connection: list(connection.execute(query).scalars()))


@pytest.mark.rule("rest-282")
async def test_a_probe_is_one_read_per_gateway_and_minute(sqlite_database: Database) -> None:
    async with RunningBroker(sqlite_database) as broker:
        broker.database.write_now(gateway_store.claim_gateway, Mac(G), name=None, by=COMMAND_LINE, now=0)
        ask(broker, ANSWERS, UNREACHABLE, BY_GATEWAY)
        rpc = RpcClient(broker.broker, TopicCodec(), broker.clock)
        prober = RelayProber(
            broker.database, rpc, owner=None, now=broker.clock, monotonic=broker.clock, timeout=30
        )
        async with asyncio.TaskGroup() as tasks, connect_gateway(broker.port, respond) as gateway:

            async def probe(*expected: str) -> None:
                for _ in range(2):  # the second one has to wait
                    await prober.poll(tasks)
                await eventually_async(lambda: rpc.pending == 0, "the response has arrived")
                await eventually_async(lambda: tuple(list_results(broker)) == expected, "it is stored")
                broker.clock.move(seconds=61)

            await probe("answered", "", "")
            await probe("answered", "lost", "")
            await probe("answered", "lost", "")
            await probe("answered", "lost", "")
            assert [each.topic_suffix for each in gateway.requests] == [
                f"{device}/read/8000" for device in (ANSWERS, UNREACHABLE, BY_GATEWAY, BY_GATEWAY)
            ]
            assert {each.body["priority"] for each in gateway.requests} == {0}
