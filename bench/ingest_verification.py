"""Verification over REST that all reports acknowledged under the load of `bench.ingest` are stored."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from bench.api_client import Client
from bench.ingest_reports import count_samples, device_mac
from meshfleet.protocol.ids import Mac, to_device_id
from meshfleet.protocol.times import format_millis
from meshfleet.service import clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.ingest_load import Load, LoadResult

ADMIN_PASSWORD: Final = "the benchmark's own"  # noqa: S105 # of a temporary service

_CHECKED_DEVICES: Final = 5
"""Devices whose samples are counted."""


def verify_samples(url: str, load: Load, sent: LoadResult, *, since: int) -> int:
    """Count the stored samples of a load, for some devices, and return their number.

    Raise `RuntimeError` if the number differs from that of acknowledged samples, or if reports were rejected.
    """
    times, counted = f"From={format_millis(since)}&To={format_millis(clock.now() + 1)}", 0
    with _open_client(url) as client:
        if rejects := json.loads(client.get("/api/v1/rejects"))["items"]:
            raise RuntimeError(f"reports were rejected, as this one: {rejects[0]}")
        for each in range(_CHECKED_DEVICES):
            of, number = each * load.gateways // _CHECKED_DEVICES, each * load.devices // _CHECKED_DEVICES
            path = f"/api/v1/devices/{to_device_id(Mac(device_mac(of, number)))}/samples?{times}"
            found = sum(1 for _ in _items(client, path))
            if found != (expected := count_samples(of, load.devices, number, sent=sent.by_gateway[of])):
                raise RuntimeError(f"{path} has {found} samples, and {expected} were acknowledged")
            counted += found
    return counted


def read_metric(url: str, name: str) -> float:
    """Return the value of a Prometheus metric."""
    with _open_client(url) as client:
        lines = client.get("/metrics").decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@contextmanager
def _open_client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        client.log_in(ADMIN_PASSWORD)
        yield client


def _items(client: Client, path: str) -> Iterator[Any]:
    token = ""
    while True:
        page = json.loads(client.get(f"{path}&MaxResults=1000{token}"))
        yield from page["items"]
        if page["nextToken"] is None:
            return
        token = f"&NextToken={page['nextToken']}"
