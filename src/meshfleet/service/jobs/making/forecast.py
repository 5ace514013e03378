"""What a job would do, without doing it (rest-122)."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from meshfleet.service.jobs.fitness import method_of
from meshfleet.service.jobs.update import clocks
from meshfleet.service.jobs.update.drivers.broadcast import LARGEST
from meshfleet.wire.ids import device_id, number_mac
from meshfleet.wire.products import Way
from meshfleet.wire.rest import DryRun, JobWave, Refusal, WaveState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.service.jobs.fitness import Misfit
    from meshfleet.service.jobs.making.freezing import Frozen
    from meshfleet.service.jobs.making.outlook import Outlook
    from meshfleet.wire.rest import NewJob

_SOME: Final = 20
"""Devices that are named of many."""

_MINUTE: Final = 60_000


def forecast(frozen: Frozen, outlook: Outlook) -> DryRun:
    """Who would be updated, who not and why, in which waves, and how long it may take."""
    waves = frozen.waves.fallen
    eligible = sum(each.size for each in waves)
    method = method_of(frozen.firmware.need)
    return DryRun(
        targets=len(frozen.sifted),
        eligible=eligible,
        skipped=len(frozen.sifted) - eligible,
        offline=frozen.sifted.offline,
        busy=outlook.busy,
        refusals=_refusals(frozen),
        methods={str(method): eligible} if eligible else {},
        waves=[
            JobWave(
                name=each.name,
                state=WaveState.WAITING,
                size=each.size,
                succeeded=0,
                failed=0,
                soaks_until=None,
            )
            for each in waves
        ],
        device_ids=_some(_first(frozen)),
        estimated_minutes=round(_minutes(frozen, method, outlook), 1) if eligible else 0.0,
    )


def _refusals(frozen: Frozen) -> list[Refusal]:
    """Why devices are left out, the most frequent reason first."""
    some: dict[Misfit, list[int]] = {}
    for target in frozen.sifted:
        if target.misfit is not None:
            named = some.setdefault(target.misfit, [])
            if len(named) < _SOME:
                named.append(target.device)
    counts = frozen.sifted.misfits()
    return [
        Refusal(code=why.code, reason=why.reason, count=count, device_ids=_some(some[why]))
        for why, count in counts.most_common()
    ]


def _first(frozen: Frozen) -> list[int]:
    """Some of those that are updated, in the order of their turns."""
    turns = ((frozen.waves.place(device).turn, device) for device in frozen.sifted.fitting())
    return [device for _, device in sorted(each for each in turns if each[0] < _SOME)]


def _some(numbers: Iterable[int]) -> list[str]:
    return [device_id(number_mac(number)) for number in numbers]


def _minutes(frozen: Frozen, method: Way, outlook: Outlook) -> float:
    """How long it takes if nothing goes wrong, as the limit that is felt most allows."""
    order, waves = frozen.checked.order, len(frozen.waves.fallen)
    behind = Counter(target.gateway for target in frozen.sifted if target.misfit is None)
    at_once = LARGEST if method is Way.BROADCAST else order.concurrency.per_gateway
    transfer = clocks.estimate(frozen.firmware.size, outlook.rate) / _MINUTE
    proof = order.health.heartbeats * outlook.beat
    # A gateway is free again while its devices prove themselves, their place in the job is not.
    at_gateways = max(_rounds(max(behind.values()), at_once), waves) * transfer + waves * proof
    in_job = _rounds(behind.total(), order.concurrency.per_job) * (transfer + proof)
    soaking = (waves - 1) * order.gate.soak_minutes
    return max(at_gateways, in_job, _paced(order, behind.total())) + soaking


def _rounds(devices: int, at_once: int | None) -> int:
    return 1 if at_once is None else math.ceil(devices / at_once)


def _paced(order: NewJob, devices: int) -> float:
    per_minute = None if order.rate is None else order.rate.per_minute
    return 0.0 if per_minute is None else devices / per_minute
