"""Embedded broker as run by `bench.broker`: as in the service, with accounts, database and authenticator.

Only the consumer differs: it counts reports, so that only the broker is measured.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from argon2 import PasswordHasher

from bench import broker_clients as clients
from meshfleet.db import bulk, open_database
from meshfleet.db.samples import open_sample_store
from meshfleet.db.tables import account, gateway
from meshfleet.mqtt.broker import take_ownership
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.rest.accounts import Role
from meshfleet.service import clock
from meshfleet.service.accounts.api_key_store import hash_credential
from meshfleet.service.api import RestApi
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.embedded_broker.endpoint import EmbeddedBroker
from meshfleet.service.embedded_broker.listeners import MqttListener
from meshfleet.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.mqtt.broker import ReportBatch

GATEWAYS, VIEWERS = 5_000, 50

LIMITS = BrokerLimits(
    connections=20_000,
    connections_per_address=20_000,
    publish_rate=10_000_000,
    queue_bytes=100_000_000,
    in_flight=2_000,
)
"""Limits for clients that share one address and run at full speed."""


class CountingConsumer:
    """Consumer that commits the changes of the broker's state, and only counts the reports."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.reports = 0

    async def commit(self, batch: ReportBatch) -> None:
        """Commit the state changes of a batch, and count its reports."""
        if batch.has_changes:
            await self._database.write(batch.write_changes)
        self.reports += len(batch.messages)


async def serve(port: int) -> None:
    """Run the broker until the process is stopped."""
    with TemporaryDirectory(prefix="meshfleet-bench-") as folder:
        database = open_database("sqlite", Path(folder))
        database.write_now(_insert_accounts)
        settings = Settings(data=Path(folder), limits=LIMITS)
        api = RestApi(database, settings, open_sample_store(database, Path(folder), {}, now=clock.now()))
        with socket.create_server(("127.0.0.1", port), backlog=4096) as listener:
            endpoint = EmbeddedBroker(
                database,
                settings,
                [MqttListener(listener, "mqtt")],
                owner=database.write_now(take_ownership),
                logins=api.logins,
                metrics=api.metrics,
                now=clock.now,
                monotonic=clock.monotonic,
            )
            broker_task = asyncio.create_task(endpoint.run(CountingConsumer(database)))
            await asyncio.sleep(0.1)
            print("ready", flush=True)
            await broker_task


def _insert_accounts(connection: Connection) -> None:
    """Insert the accounts of the clients, with password hashes that are cheap to check."""
    now, hasher = clock.now(), PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    macs = [Mac(clients.gateway_mac(number)) for number in range(GATEWAYS)]
    registry.record_observations(
        connection, [DeviceObservation(device=mac, at=now, heard=False) for mac in macs]
    )
    rows = [(mac_to_int(mac), hash_credential(f"secret-{mac}"), now, None, None, None, None) for mac in macs]
    bulk.insert_rows(connection, gateway, rows)
    names = [clients.viewer_name(number) for number in range(VIEWERS)]
    users = [(name, hasher.hash(f"secret-{name}"), Role.VIEWER.value, now, None) for name in names]
    bulk.insert_rows(connection, account, users)
