"""What a job is made of, as callers name it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict, TypeVar

from msgspec import UNSET, UnsetType

from meshfleet.client.names import check_names, id_of, mac_of, moment, one_of, several, text_of
from meshfleet.client.rest.devices import Filters
from meshfleet.errors import WireError
from meshfleet.wire.products import Way
from meshfleet.wire.rest import (
    Concurrency,
    Criterion,
    Gate,
    JobHealth,
    NewJob,
    Rate,
    Retry,
    TargetFilter,
    Targets,
    Timeouts,
    Wave,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.client.names import Moment

Value = TypeVar("Value")


class Order(TypedDict, total=False):
    """Which devices are updated, and how. Without a word everything is as the service has it."""

    devices: str | Iterable[str]
    """These."""
    labels: str | Iterable[str]
    """And all that have any of these labels."""
    filter: Filters | None
    """And all that meet these filters, as in `fleet.devices.list`."""
    everything: bool
    """And all others."""
    stage: bool
    """Let devices keep the image until the job is applied."""
    allow_downgrade: bool
    method: Way | Literal["download", "broadcast", "nordic-dfu"] | None
    """None: as fits each device."""
    auto_apply: bool
    """False: the job begins when it is applied."""
    start_at: Moment | None
    deadline: Moment | None
    waves: Iterable[Wave]
    gate: Gate
    concurrency: Concurrency
    rate: Rate | None
    abort: Iterable[Criterion]
    retry: Retry
    timeouts: Timeouts
    health: JobHealth
    on_newer_job: Literal["queue", "supersede", "reject"]
    """What to do where another job comes for the same device."""


def order_of(name: str, firmware: str, order: Order, *, dry_run: bool) -> NewJob:
    """The body that asks for a job."""
    check_names(order, Order)
    method = order.get("method")
    waves = tuple(order.get("waves", ()))
    for wave in waves:
        text_of(wave.name or "", "waves")
    return NewJob(
        name=name,
        firmware_id=firmware,
        targets=_targets(order),
        stage=order.get("stage", False),
        allow_downgrade=order.get("allow_downgrade", False),
        method=None if method is None else one_of(Way, method, "method"),
        auto_apply=order.get("auto_apply", True),
        dry_run=dry_run,
        start_at=moment(order.get("start_at"), "start_at"),
        deadline=moment(order.get("deadline"), "deadline"),
        waves=waves,
        gate=order.get("gate", Gate()),
        concurrency=order.get("concurrency", Concurrency()),
        rate=order.get("rate"),
        abort=tuple(order.get("abort", ())),
        retry=order.get("retry", Retry()),
        timeouts=order.get("timeouts", Timeouts()),
        health=order.get("health", JobHealth()),
        on_newer_job=order.get("on_newer_job", "queue"),
    )


def _targets(order: Order) -> Targets:
    chosen = order.get("filter")
    found = Targets(
        device_ids=_some([id_of(each, "devices") for each in several(order.get("devices", ()))]),
        labels=_some([text_of(each, "labels") for each in several(order.get("labels", ()))]),
        filter=UNSET if chosen is None else _filter(chosen),
        all=order.get("everything", False),
    )
    if found == Targets():
        raise WireError("devices", "are none: name some, or say everything=True")
    return found


def _filter(chosen: Filters) -> TargetFilter:
    check_names(chosen, Filters)
    gateway = chosen.get("gateway")
    return TargetFilter(
        label=_some([text_of(each, "labels") for each in several(chosen.get("labels", ()))]),
        connected=_given(chosen.get("connected")),
        model_number=_text(chosen.get("model_number"), "model_number"),
        firmware_version=_text(chosen.get("firmware_version"), "firmware_version"),
        hardware_version=_text(chosen.get("hardware_version"), "hardware_version"),
        friendly_name=_text(chosen.get("friendly_name"), "friendly_name"),
        gateway=UNSET if gateway is None else mac_of(gateway),
        ids=_some([id_of(each, "ids") for each in several(chosen.get("ids", ()))]),
    )


def _text(text: str | None, field: str) -> str | UnsetType:
    return UNSET if text is None else text_of(text, field)


def _given(value: Value | None) -> Value | UnsetType:
    return UNSET if value is None else value


def _some(values: list[str]) -> list[str] | UnsetType:
    return values or UNSET
