"""Gateways that send garbage at full speed, and their effect on others."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import Puback, Publish
from tests.scenarios.attackers import Attacker, build_attacks
from tests.scenarios.report_load import ReportLoad
from tests.scenarios.stored_samples import check_stored_samples

if TYPE_CHECKING:
    from tests.scenarios.service_process import ServiceProcess

pytestmark = pytest.mark.anyio

GOOD, FAULTY = "02005e000001", "02005e000002"
HOSTILE = "02005e00000a"

MAX_GROWTH = 300.0
"""MiB by which the memory of the service may grow."""

ROUNDS = {"large": 120}
"""Rounds of an attack by each of two clients, if not three: enough to exceed the limit."""


@pytest.mark.rule("report-29", "report-30", "broker-3")
async def test_gateways_that_send_garbage_at_full_speed_do_not_affect_others(service: ServiceProcess) -> None:
    good, faulty, hostile = (service.claim(mac) for mac in (GOOD, FAULTY, HOSTILE))
    address = service.mqtt["mqtt"]
    before = service.memory
    async with ReportLoad(address, [good]) as load:
        for name, attack in build_attacks(HOSTILE).items():
            with ExitStack() as stack:
                attackers = [
                    stack.enter_context(Attacker(address, hostile, attack, client_id=client_id))
                    for client_id in (HOSTILE, HOSTILE.upper())
                ]
                while any(attacker.rounds < ROUNDS.get(name, 3) for attacker in attackers):
                    await load.wait_for_acks(50)
                    assert service.is_ready(), name
                assert service.call("GET", "/api/v1/gateways")["items"]
        client = await service.connect(faulty)
        client.send(Publish(f"mt/gateway/{FAULTY}/device/{FAULTY}/heartbeat", b'{"seq":300}', 1, packet_id=1))
        assert await client.expect(Puback) == Puback(1)
    check_stored_samples(service, load.sources)
    assert service.memory - before < MAX_GROWTH
    for mac in (FAULTY, HOSTILE):
        assert service.call("GET", f"/api/v1/rejects?Gateway={mac}")["items"]
    await service.disconnect_all()
    code, errors = service.stop()
    assert (code, "Traceback" in errors) == (0, False), errors
