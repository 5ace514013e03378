"""JSON bodies of the REST API: the topology of a gateway, parents of devices, and paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from meshfleet.rest.bodies import DeviceIdText, MacText, ResponseBody, TimeText

if TYPE_CHECKING:
    from collections.abc import Mapping

# Signal classes: one table for topology, lists, alarms and the console.

Signal: TypeAlias = Literal["good", "fair", "weak", "very-weak"]

SIGNAL_CLASSES: Final[Mapping[Signal, float]] = {"good": -70, "fair": -80, "weak": -88}
"""Lowest RSSI of each signal class in dBm, the best class first; below all of them it is `very-weak`."""


def classify_signal(rssi: float) -> Signal:
    """Return the signal class of an RSSI in dBm."""
    return next((name for name, least in SIGNAL_CLASSES.items() if rssi >= least), "very-weak")


class TopologyNode(ResponseBody, frozen=True, kw_only=True):
    """Node of the mesh of a gateway (rest-89). The gateway itself is the node with `depth` 0."""

    device: DeviceIdText
    parent: MacText | None
    """Next node on the way to the gateway; null for the gateway, and for orphans without a known parent."""
    depth: int | None
    """Number of hops to the gateway; null for an orphan."""
    rssi: int | None
    """RSSI of the last reading at the parent, in dBm; without a parent, of the last reading at any node."""
    seen_at: TimeText | None
    """Time of that reading; null if there is no reading of the node itself."""
    children: int
    """Number of nodes whose parent is this node."""
    descendants: int
    """Number of nodes below this node, at any depth."""
    signal: Signal | None
    """Class of `rssi`."""
    orphan: bool
    """Whether the device was heard recently, but no path to the gateway is known (rest-239)."""
    cuts_off: int
    """Number of devices that lose their way if this node fails (rest-240)."""
    load: float
    """RSSI readings and heartbeats per minute of this node and the nodes below it."""


class SinglePoint(ResponseBody, frozen=True, kw_only=True):
    """Node other than the gateway whose failure cuts off other devices."""

    device: DeviceIdText
    cuts_off: int


class WeakLink(ResponseBody, frozen=True, kw_only=True):
    """Link of the tree with a weak or very weak signal."""

    device: DeviceIdText
    parent: MacText
    rssi: int
    signal: Signal


class Topology(ResponseBody, frozen=True, kw_only=True):
    """Mesh of a gateway at one time (rest-89)."""

    gateway: MacText
    at: TimeText
    nodes: list[TopologyNode]
    """The gateway, then the other nodes by depth, then orphans; nodes of the same depth by device id."""
    weak_links: list[WeakLink]
    """Links of the tree that are weak or very weak, the weakest first."""
    orphans: list[DeviceIdText]
    single_points: list[SinglePoint]
    """Nodes other than the gateway whose failure cuts off others, the one with the most devices first."""


class ParentChange(ResponseBody, frozen=True, kw_only=True):
    """Change of the parent of a device (rest-242)."""

    time: TimeText
    parent: MacText
    previous: MacText | None
    """Parent before; null if it was not known."""
    gateway: MacText
    """Gateway of the new parent."""
    established: bool
    """Whether a mesh link leads to the parent; false if the parent is the node that hears the device best."""


class ParentChangePage(ResponseBody, frozen=True, kw_only=True):
    """Page of the parent changes of a device, the newest first."""

    items: list[ParentChange]
    next_token: str | None


class Hop(ResponseBody, frozen=True, kw_only=True):
    """Hop on the way from a device to its gateway."""

    device: DeviceIdText
    parent: MacText
    rssi: int
    """RSSI of the last reading, in dBm."""
    signal: Signal
    seen_at: TimeText
    age: float
    """Seconds since the last reading."""


class AlternativeParent(ResponseBody, frozen=True, kw_only=True):
    """Node that also hears a device, and could be its parent."""

    parent: MacText
    gateway: MacText
    rssi: int
    """RSSI of the last reading, in dBm."""
    signal: Signal
    seen_at: TimeText
    difference: float | None
    """Decibels by which the mean signal is better than at the present parent; negative if it is worse."""
    has_path: bool
    """Whether the node has a path to its gateway that does not lead through the device."""
    depth: int | None
    """Hops of the device to the gateway through this node; null without a path, or at another gateway."""


class DevicePath(ResponseBody, frozen=True, kw_only=True):
    """Way of a device to its gateway, and its alternatives (rest-244)."""

    device: DeviceIdText
    gateway: MacText | None
    """Gateway of the device; null if the device was not heard recently."""
    at: TimeText
    complete: bool
    """Whether the hops lead to the gateway."""
    hops: list[Hop]
    """From the device to the gateway, or as far as the way is known."""
    alternatives: list[AlternativeParent]
    """Other parents, those with a path first, then the best signal first."""
