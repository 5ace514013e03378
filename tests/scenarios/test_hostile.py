"""Gateways that send garbage at full speed hurt nobody else."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

import pytest

from meshfleet.wire.mqtt.packets import Puback, Publish
from tests.databases import make_database
from tests.scenarios.hostile import Vandal, attacks
from tests.scenarios.load import Load
from tests.scenarios.serving import Service, loopback
from tests.scenarios.stored import check

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
def service(request: pytest.FixtureRequest, database_kind: str, tmp_path: Path) -> Iterator[Service]:
    given = loopback("--mqtt")
    if database_kind == "postgresql":
        server: str = request.getfixturevalue("postgresql_server")
        given += ["--database", make_database(server, f"hostile_{next(_numbers)}")]
    with Service(tmp_path, *given) as running:
        yield running


@pytest.mark.rule("report-29", "report-30", "broker-3")
async def test_gateways_that_send_garbage_at_full_speed_hurt_nobody_else(service: Service) -> None:
    good, clumsy, hostile = (service.claim(mac) for mac in (GOOD, CLUMSY, HOSTILE))
    place = service.mqtt["mqtt"]
    before = service.memory
    async with Load(place, [good]) as load:
        for name, attack in attacks(HOSTILE).items():
            with ExitStack() as stack:
                vandals = [
                    stack.enter_context(Vandal(place, hostile, attack, client_id=client_id))
                    for client_id in (HOSTILE, HOSTILE.upper())
                ]
                while any(vandal.rounds < ROUNDS.get(name, 3) for vandal in vandals):
                    await load.go_on(50)
                    assert service.is_ready(), name
                assert service.ask("GET", "/api/v1/gateways")["items"]
        wrong = await service.guest(clumsy)
        wrong.send(Publish(f"mt/gateway/{CLUMSY}/device/{CLUMSY}/heartbeat", b'{"seq":300}', 1, packet_id=1))
        assert await wrong.expect(Puback) == Puback(1)
    check(service, load.ledgers)
    assert service.memory - before < LEEWAY
    for mac in (CLUMSY, HOSTILE):
        assert service.ask("GET", f"/api/v1/rejects?Gateway={mac}")["items"]
    await service.hang_up()
    code, errors = service.stop()
    assert (code, "Traceback" in errors) == (0, False), errors
