"""Tests of dry runs: what a job would do, without creating it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from sqlalchemy import update

from meshfleet.db.tables import device_state
from meshfleet.protocol.ids import DeviceId, Mac, Version, to_mac
from meshfleet.rest.jobs import DryRun
from meshfleet.service.devices.model import DeviceObservation
from tests.row_tables import each_row
from tests.service.jobs.job_environment import MINUTE, UNTOUCHED, number_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tests.service.jobs.job_environment import JobEnvironment


@pytest.mark.rule("rest-122")
def test_a_dry_run_returns_the_plan_and_stores_nothing(env: JobEnvironment) -> None:
    eligible = env.devices(25, gateway=env.service.new_mac())
    on_target, newer = env.devices(3, "3.4.2"), env.devices(2, "4.0.0")
    before = env.count_rows()
    result = env.dry_run(
        env.firmware(),
        {"deviceIds": [*eligible, *on_target, *newer]},
        waves=[{"name": "canary", "count": 5}, {"percent": 100}],
        health={"heartbeats": 0},
    )
    assert env.count_rows() == before
    msgspec.json.decode(msgspec.json.encode(result), type=DryRun)
    assert (result["dryRun"], result["targets"], result["eligible"], result["skipped"]) == (True, 30, 25, 5)
    assert result["refusals"] == [
        {
            "code": "ALREADY_THERE",
            "reason": "it reports that it already runs 3.4.2; its version is read before it is skipped",
            "count": 3,
            "deviceIds": on_target,
        },
        {
            "code": "DOWNGRADE",
            "reason": "it runs 4.0.0, which is newer than 3.4.2",
            "count": 2,
            "deviceIds": newer,
        },
    ]
    assert result["methods"] == {"download": 25}
    assert result["waves"] == [
        {"name": "canary", "state": "WAITING", "size": 5} | UNTOUCHED,
        {"name": None, "state": "WAITING", "size": 20} | UNTOUCHED,
    ]
    assert len(result["deviceIds"]) == 20
    assert set(result["deviceIds"]) < set(eligible)
    # One device after another, with 60,000 bytes at 300 bytes per second.
    assert result["estimatedMinutes"] == pytest.approx(25 * 200 / 60, abs=0.1)


@pytest.mark.rule("rest-122")
@each_row(
    ("fields", "minutes"),
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
def test_the_estimate_follows_the_tightest_limit(
    env: JobEnvironment, fields: dict[str, Any], minutes: float
) -> None:
    devices = env.devices(10, gateway=Mac(env.service.new_mac()))
    result = env.dry_run(env.firmware(), {"deviceIds": devices}, **{"health": {"heartbeats": 0}} | fields)
    assert result["estimatedMinutes"] == pytest.approx(minutes, abs=0.1)


@pytest.mark.rule("rest-122")
def test_a_dry_run_counts_offline_devices(env: JobEnvironment) -> None:
    offline, on_target = env.devices(2, connected=False), env.devices(3, connected=True)
    left_out = env.devices(1, "3.4.2", connected=False)
    result = env.dry_run(env.firmware(), {"deviceIds": [*offline, *on_target, *left_out]})
    assert (result["eligible"], result["offline"]) == (5, 2)


@pytest.mark.rule("rest-122", "rest-212")
def test_a_dry_run_counts_devices_that_another_job_is_updating(env: JobEnvironment) -> None:
    queued, active, ended, free, left_out = env.devices(5)
    job = env.create_job(env.firmware(), [queued, active, ended, left_out])["id"]
    env.set_execution(job, active, state="TRANSFERRING")
    env.set_execution(job, ended, state="SUCCEEDED")
    env.create_job(env.firmware(), [queued])
    env.set_job(env.create_job(env.firmware(), [free])["id"], state="CANCELED", finished_at=env.now)
    env.service.observe(
        DeviceObservation(device=to_mac(DeviceId(left_out)), at=env.now, firmware=Version(3, 5, 0))
    )
    targets = {"deviceIds": [queued, active, ended, free, left_out]}
    result = env.dry_run(env.firmware("3.5.0"), targets)
    assert (result["eligible"], result["busy"]) == (4, 2)
    superseded_job = env.create_job(env.firmware(), [free, ended], onNewerJob="supersede")["id"]
    assert env.dry_run(env.firmware("3.5.0"), targets)["busy"] == 2  # its queued devices can be taken over
    env.set_execution(superseded_job, free, state="CONFIRMING")
    assert env.dry_run(env.firmware("3.5.0"), targets)["busy"] == 3


@pytest.mark.rule("rest-122")
@each_row(
    ("intervals", "expected_minutes"),
    [
        ([1.5] * 10, 1.5),
        ([1.0] * 9 + [90.0], 1.0),
        ([1.0] * 5 + [30.0] * 5, 30.0),
        ([1.0] * 5 + [None] * 5, 20.0),
        ([None] * 10, 20.0),
    ],
)
def test_the_estimate_uses_heartbeat_intervals(
    env: JobEnvironment, intervals: list[float | None], expected_minutes: float
) -> None:
    devices = env.devices(10, gateway=Mac(env.service.new_mac()))

    def set_intervals(connection: Connection) -> None:
        for device, minutes in zip(devices, intervals, strict=True):
            interval = None if minutes is None else int(minutes * MINUTE)
            is_device = device_state.c.device == number_of(device)
            assert (
                connection.execute(update(device_state).where(is_device).values(rhythm=interval)).rowcount
                == 1
            )

    env.service.database.write_now(set_intervals)
    result = env.dry_run(env.firmware(), {"deviceIds": devices}, concurrency={"perGateway": None})
    assert result["estimatedMinutes"] == pytest.approx(200 / 60 + 3 * expected_minutes, abs=0.1)


@pytest.mark.rule("rest-122")
def test_a_dry_run_without_eligible_devices_is_empty(env: JobEnvironment) -> None:
    result = env.dry_run(env.firmware(), {"deviceIds": env.devices(30, "3.4.2")})
    assert (result["eligible"], result["waves"], result["methods"], result["estimatedMinutes"]) == (
        0,
        [],
        {},
        0,
    )
    assert len(result["refusals"][0]["deviceIds"]) == 20
