"""Dry runs: what a job would do, told before there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from sqlalchemy import update

from meshfleet.db.tables import device_state
from meshfleet.protocol.ids import DeviceId, Mac, Version, to_mac
from meshfleet.rest import DryRun
from meshfleet.service.devices.model import DeviceObservation
from tests.row_tables import each_row
from tests.service.jobs.job_environment import MINUTE, UNTOUCHED, number_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tests.service.jobs.job_environment import JobEnvironment


@pytest.mark.rule("rest-122")
def test_a_dry_run_tells_what_would_be_and_makes_nothing(shop: JobEnvironment) -> None:
    fitting = shop.devices(25, gateway=shop.service.new_mac())
    there, newer = shop.devices(3, "3.4.2"), shop.devices(2, "4.0.0")
    before = shop.count_rows()
    told = shop.dry_run(
        shop.firmware(),
        {"deviceIds": [*fitting, *there, *newer]},
        waves=[{"name": "canary", "count": 5}, {"percent": 100}],
        health={"heartbeats": 0},
    )
    assert shop.count_rows() == before
    msgspec.json.decode(msgspec.json.encode(told), type=DryRun)
    assert (told["dryRun"], told["targets"], told["eligible"], told["skipped"]) == (True, 30, 25, 5)
    assert told["refusals"] == [
        {
            "code": "ALREADY_THERE",
            "reason": "it reports that it already runs 3.4.2; its version is read before it is skipped",
            "count": 3,
            "deviceIds": there,
        },
        {
            "code": "DOWNGRADE",
            "reason": "it runs 4.0.0, which is newer than 3.4.2",
            "count": 2,
            "deviceIds": newer,
        },
    ]
    assert told["methods"] == {"download": 25}
    assert told["waves"] == [
        {"name": "canary", "state": "WAITING", "size": 5} | UNTOUCHED,
        {"name": None, "state": "WAITING", "size": 20} | UNTOUCHED,
    ]
    assert len(told["deviceIds"]) == 20
    assert set(told["deviceIds"]) < set(fitting)
    # One after the other, 60,000 bytes at 300 bytes a second.
    assert told["estimatedMinutes"] == pytest.approx(25 * 200 / 60, abs=0.1)


@pytest.mark.rule("rest-122")
@each_row(
    ("order", "minutes"),
    [
        ({}, 10 * 200 / 60),
        ({"concurrency": {"perGateway": None}}, 200 / 60),
        ({"concurrency": {"perGateway": 5}}, 2 * 200 / 60),
        ({"concurrency": {"perGateway": None, "perJob": 4}}, 3 * 200 / 60),
        ({"concurrency": {"perGateway": None}, "rate": {"perMinute": 1}}, 10.0),
        ({"method": "broadcast"}, 300 / 60),
        ({"method": "nordic-dfu"}, 10 * 30 / 60),
        ({"waves": [{"count": 5}], "gate": {"soakMinutes": 30}}, 10 * 200 / 60 + 30),
        ({"concurrency": {"perGateway": None}, "health": {"heartbeats": 3}}, 200 / 60 + 60),
        ({"health": {"heartbeats": 3}}, 10 * 200 / 60 + 60),
        ({"health": {"heartbeats": 3}, "concurrency": {"perJob": 5}}, 2 * (200 / 60 + 60)),
        ({"health": {"heartbeats": 3}, "waves": [{"count": 1}]}, 10 * 200 / 60 + 120),
    ],
)
def test_an_estimate_follows_the_limit_that_is_felt_most(
    shop: JobEnvironment, order: dict[str, Any], minutes: float
) -> None:
    devices = shop.devices(10, gateway=Mac(shop.service.new_mac()))
    told = shop.dry_run(shop.firmware(), {"deviceIds": devices}, **{"health": {"heartbeats": 0}} | order)
    assert told["estimatedMinutes"] == pytest.approx(minutes, abs=0.1)


@pytest.mark.rule("rest-122")
def test_a_dry_run_tells_how_many_would_have_to_wait(shop: JobEnvironment) -> None:
    away, there = shop.devices(2, connected=False), shop.devices(3, connected=True)
    left_out = shop.devices(1, "3.4.2", connected=False)
    told = shop.dry_run(shop.firmware(), {"deviceIds": [*away, *there, *left_out]})
    assert (told["eligible"], told["offline"]) == (5, 2)


@pytest.mark.rule("rest-122", "rest-212")
def test_a_dry_run_tells_how_many_another_job_is_not_over_with(shop: JobEnvironment) -> None:
    queued, under_way, over, free, left_out = shop.devices(5)
    job = shop.create_job(shop.firmware(), [queued, under_way, over, left_out])["id"]
    shop.set_execution(job, under_way, state="TRANSFERRING")
    shop.set_execution(job, over, state="SUCCEEDED")
    shop.create_job(shop.firmware(), [queued])
    shop.set_job(shop.create_job(shop.firmware(), [free])["id"], state="CANCELED", finished_at=shop.now)
    shop.service.observe(
        DeviceObservation(device=to_mac(DeviceId(left_out)), at=shop.now, firmware=Version(3, 5, 0))
    )
    targets = {"deviceIds": [queued, under_way, over, free, left_out]}
    told = shop.dry_run(shop.firmware("3.5.0"), targets)
    assert (told["eligible"], told["busy"]) == (4, 2)
    giving = shop.create_job(shop.firmware(), [free, over], onNewerJob="supersede")["id"]
    assert shop.dry_run(shop.firmware("3.5.0"), targets)["busy"] == 2  # what it has not begun it gives up
    shop.set_execution(giving, free, state="CONFIRMING")
    assert shop.dry_run(shop.firmware("3.5.0"), targets)["busy"] == 3


@pytest.mark.rule("rest-122")
@each_row(
    ("rhythms", "beat"),
    [
        ([1.5] * 10, 1.5),
        ([1.0] * 9 + [90.0], 1.0),
        ([1.0] * 5 + [30.0] * 5, 30.0),
        ([1.0] * 5 + [None] * 5, 20.0),
        ([None] * 10, 20.0),
    ],
)
def test_an_estimate_knows_how_often_devices_are_heard(
    shop: JobEnvironment, rhythms: list[float | None], beat: float
) -> None:
    devices = shop.devices(10, gateway=Mac(shop.service.new_mac()))

    def hear(connection: Connection) -> None:
        for device, minutes in zip(devices, rhythms, strict=True):
            rhythm = None if minutes is None else int(minutes * MINUTE)
            mine = device_state.c.device == number_of(device)
            assert connection.execute(update(device_state).where(mine).values(rhythm=rhythm)).rowcount == 1

    shop.service.database.write_now(hear)
    told = shop.dry_run(shop.firmware(), {"deviceIds": devices}, concurrency={"perGateway": None})
    assert told["estimatedMinutes"] == pytest.approx(200 / 60 + 3 * beat, abs=0.1)


@pytest.mark.rule("rest-122")
def test_a_dry_run_for_nobody_tells_so(shop: JobEnvironment) -> None:
    told = shop.dry_run(shop.firmware(), {"deviceIds": shop.devices(30, "3.4.2")})
    assert (told["eligible"], told["waves"], told["methods"], told["estimatedMinutes"]) == (0, [], {}, 0)
    assert len(told["refusals"][0]["deviceIds"]) == 20
