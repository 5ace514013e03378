"""Made-up topologies that are larger than those of the demo."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from meshfleet.rest.topology import classify_signal

_FIRST: Final = 0xC0FFEE000000
_FANOUT: Final = 6
"""Number of children of each node but the gateway."""


def list_devices(topology: dict[str, Any], *, major: int = 1) -> dict[str, Any]:
    """Build the body of the list of devices of a topology, as far as the topology page reads it.

    `major` is the first number of all firmware versions.
    """
    items = [
        {"id": node["device"], "friendlyName": f"Node {number}", "firmwareVersion": f"{major}.{number % 3}.0"}
        for number, node in enumerate(topology["nodes"])
    ]
    return {"items": items, "nextToken": None}


def large_topology(gateway: str, devices: int, *, branches: int = 12) -> dict[str, Any]:
    """Build the body of the topology of a gateway with many devices, as the service would send it.

    `branches` is the number of children of the gateway.
    """
    macs = [gateway, *(f"{_FIRST + number:012x}" for number in range(devices))]
    parents = [None, *(max(0, 1 + (number - branches) // _FANOUT) for number in range(devices))]
    depths, below = [0] * len(macs), [0] * len(macs)
    for index, parent in enumerate(parents):
        depths[index] = 0 if parent is None else depths[parent] + 1
    for index in range(devices, 0, -1):
        below[parents[index] or 0] += below[index] + 1
    children = Counter(parents)
    nodes = [
        {
            "device": f"bmac-{mac}",
            "parent": None if parent is None else macs[parent],
            "depth": depths[index],
            "rssi": None if parent is None else -60 - index % 32,
            "seenAt": None if parent is None else "2026-11-19T00:00:00Z",
            "children": children[index],
            "descendants": below[index],
            "signal": None if parent is None else classify_signal(-60 - index % 32),
            "orphan": False,
            "cutsOff": below[index] if depths[index] == 1 and index % 5 == 0 else 0,
            "load": 1.0 + below[index],
        }
        for index, (mac, parent) in enumerate(zip(macs, parents, strict=True))
    ]
    return {
        "gateway": gateway,
        "at": "2026-11-19T00:00:00Z",
        "nodes": nodes,
        "weakLinks": [],
        "orphans": [],
        "singlePoints": [],
    }
