"""A service that cannot write what it has coalesced goes on taking reports, and says so."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from meshfleet.wire.mqtt.packets import Puback, Publish
from meshfleet.wire.times import write_millis
from tests.databases import make_database
from tests.scenarios.serving import Service, loopback
from tests.scenarios.stored import samples
from tests.service.mqtt.site import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

GATEWAY, DEVICE = "02005e000001", "c0ffee0000a1"


@pytest.mark.rule("rest-160")
async def test_a_database_that_refuses_a_flush_is_told_until_it_takes_it(
    postgresql_server: str, tmp_path: Path
) -> None:
    address = make_database(postgresql_server, "refusing")
    with (
        Service(tmp_path, *loopback("--mqtt"), "--database", address) as service,
        psycopg.connect(address, autocommit=True) as connection,
    ):
        gateway = await service.guest(service.claim(GATEWAY))
        connection.execute("ALTER TABLE reject RENAME TO elsewhere")  # of no use but to a flush
        await until(lambda: not service.is_ready())
        at = write_millis(time.time_ns() // 1_000_000)
        payload = f'{{"time":"{at}","seq":1,"value":"0100"}}'.encode()
        topic = f"mt/gateway/{GATEWAY}/device/{DEVICE}/measurement/8800"
        gateway.send(Publish(topic, payload, 1, packet_id=1))
        assert await gateway.expect(Puback) == Puback(1)
        connection.execute("ALTER TABLE elsewhere RENAME TO reject")
        await until(service.is_ready)
        assert samples(service, DEVICE) == 1
        await service.hang_up()
        code, errors = service.stop()
    assert (code, "DELETE" in errors) == (0, False), errors
    assert "what was coalesced cannot be written: UndefinedTable" in errors
