"""Gateways that send garbage at full speed hurt nobody else."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import Puback, Publish
from tests.databases import create_database
from tests.scenarios.attackers import Attacker, build_attacks
from tests.scenarios.report_load import ReportLoad
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.scenarios.stored_samples import check_stored_samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

GOOD, CLUMSY = "02005e000001", "02005e000002"
HOSTILE = "02005e00000a"

LEEWAY = 300.0
"""MiB that the service may grow by."""

ROUNDS = {"large": 120}
"""How often an attack is made by each of two, if not three times; so often it is more than the leeway."""

_numbers = count(1)


@pytest.fixture
def service(request: pytest.FixtureRequest, database_kind: str, tmp_path: Path) -> Iterator[ServiceProcess]:
    given = loopback_options("--mqtt")
    if database_kind == "postgresql":
        server: str = request.getfixturevalue("postgresql_server")
        given += ["--database", create_database(server, f"hostile_{next(_numbers)}")]
    with ServiceProcess(tmp_path, *given) as running:
        yield running


@pytest.mark.rule("report-29", "report-30", "broker-3")
async def test_gateways_that_send_garbage_at_full_speed_hurt_nobody_else(service: ServiceProcess) -> None:
    good, clumsy, hostile = (service.claim(mac) for mac in (GOOD, CLUMSY, HOSTILE))
    place = service.mqtt["mqtt"]
    before = service.memory
    async with ReportLoad(place, [good]) as load:
        for name, attack in build_attacks(HOSTILE).items():
            with ExitStack() as stack:
                vandals = [
                    stack.enter_context(Attacker(place, hostile, attack, client_id=client_id))
                    for client_id in (HOSTILE, HOSTILE.upper())
                ]
                while any(vandal.rounds < ROUNDS.get(name, 3) for vandal in vandals):
                    await load.wait_for_acks(50)
                    assert service.is_ready(), name
                assert service.call("GET", "/api/v1/gateways")["items"]
        wrong = await service.connect(clumsy)
        wrong.send(Publish(f"mt/gateway/{CLUMSY}/device/{CLUMSY}/heartbeat", b'{"seq":300}', 1, packet_id=1))
        assert await wrong.expect(Puback) == Puback(1)
    check_stored_samples(service, load.sources)
    assert service.memory - before < LEEWAY
    for mac in (CLUMSY, HOSTILE):
        assert service.call("GET", f"/api/v1/rejects?Gateway={mac}")["items"]
    await service.disconnect_all()
    code, errors = service.stop()
    assert (code, "Traceback" in errors) == (0, False), errors
