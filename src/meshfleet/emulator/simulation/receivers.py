"""Receivers of each node of a mesh: the few best ones, found without checking all nodes of a large site."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from math import hypot
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.emulator.simulation import radio
from meshfleet.emulator.simulation.radio import FAST_FADING_DB, SLOW_FADING_DB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meshfleet.emulator.simulation.mesh_node import MeshNode
    from meshfleet.emulator.simulation.site import Site, SitePosition
    from meshfleet.protocol.ids import Mac


MAX_RECEIVERS: Final = 6
"""Number of receivers of a node among which its parent is chosen; more would not improve the choice.

Further ones, if the site has them (`Site.receivers`), only report the RSSI of the node (gateway-48).
"""

_HOP_METERS: Final = 12.0
"""Distance in meters that a mesh link spans reliably."""
_RELIABLE_DBM: Final = -86.0
"""Minimum mean RSSI in dBm of a reliable mesh link (inclusive)."""


class Receivers(NamedTuple):
    """Nodes that receive the radio signal of a node: at most `MAX_RECEIVERS` possible parents, then others.

    The strongest node of both parts is the first one.
    """

    nodes: tuple[MeshNode, ...]
    mean_rssi: array[float]
    """Mean RSSI in dBm at each of `nodes`."""


class ReceiverIndex:
    """Finds the nodes that may receive the radio signal of another node.

    Nodes are indexed by floor and x coordinate, because most nodes of a large site are too far away.
    """

    def __init__(self, nodes: Iterable[MeshNode], site: Site) -> None:
        self._walls, self._gains = site.walls, site.gains
        self._max_receivers = site.receivers
        self._fading = 0.0 if site.receivers is None else SLOW_FADING_DB + FAST_FADING_DB
        """dB by which fading may lift a signal that is too weak on average. It does not make parents."""
        self._ranges = _RANGES
        if self._fading or site.gains or site.powers:
            power = max((0, *(dbm - radio.DEFAULT_POWER_DBM for dbm in site.powers.values())))
            self._ranges = _compute_ranges(2.0 * max((0.0, *site.gains.values())) + power + self._fading)
        self._floors: dict[int, tuple[list[MeshNode], list[float]]] = {}
        for node in sorted(nodes, key=_by_x):
            floor_nodes, xs = self._floors.setdefault(node.position.floor, ([], []))
            floor_nodes.append(node)
            xs.append(node.position.x)

    def find_receivers(self, node: MeshNode, *, preferred: Mac | None = None) -> Receivers:
        """Return the nodes that receive the radio signal of `node` best, as many as the site allows.

        If the node with the MAC `preferred` receives the signal at all, it is among the possible parents.
        """
        audible = self._list_audible_nodes(node)
        audible.sort(key=_by_strength)
        candidates = audible
        if self._max_receivers is not None:
            lowest = radio.MIN_AUDIBLE_DBM - node.tx_gain
            candidates = [entry for entry in audible if entry[0] >= lowest]
        chosen = _select_receivers(candidates) if len(candidates) > MAX_RECEIVERS else candidates
        if preferred is not None and all(receiver.mac != preferred for _, receiver in chosen):
            chosen[-1:] = [entry for entry in candidates if entry[1].mac == preferred] or chosen[-1:]
            chosen.sort(key=_by_strength)
        if self._max_receivers is not None:
            parents = {receiver for _, receiver in chosen}
            others = [entry for entry in audible if entry[1] not in parents]
            chosen = [*chosen, *others[: self._max_receivers - len(chosen)]]
        return Receivers(
            tuple(receiver for _, receiver in chosen), array("f", [level for level, _ in chosen])
        )

    def _list_audible_nodes(self, node: MeshNode) -> list[tuple[float, MeshNode]]:
        """Return all nodes that may receive `node`, with its mean RSSI there in dBm without its `tx_gain`."""
        gains, walls, position = self._gains, self._walls, node.position
        lowest = radio.MIN_AUDIBLE_DBM - node.tx_gain - self._fading
        if not gains:  # as on most sites: a large fleet starts faster without the lookups below
            return [
                (level, receiver)
                for receiver in self._iterate_nearby_nodes(position)
                if receiver is not node
                and (level := radio.estimate_mean_rssi(position, receiver.position, walls)) >= lowest
            ]
        gain = gains.get(node.mac, 0.0)
        return [
            (level, receiver)
            for receiver in self._iterate_nearby_nodes(position)
            if receiver is not node
            and (
                level := radio.estimate_mean_rssi(position, receiver.position, walls)
                + gain
                + gains.get(receiver.mac, 0.0)
            )
            >= lowest
        ]

    def _iterate_nearby_nodes(self, position: SitePosition) -> Iterator[MeshNode]:
        """Yield the nodes that are near enough to receive a signal from a position."""
        for floor_offset, range_meters in self._ranges:
            floor_nodes, xs = self._floors.get(position.floor + floor_offset, _EMPTY_FLOOR)
            for node in floor_nodes[
                bisect_left(xs, position.x - range_meters) : bisect_right(xs, position.x + range_meters)
            ]:
                if abs(node.position.y - position.y) <= range_meters:
                    yield node


def _compute_ranges(gain: float) -> tuple[tuple[int, float], ...]:
    """Return pairs of floor difference and radio range in meters, if `gain` dB are added to each signal.

    Floors that are too far apart are left out: without a gain, nodes two floors away are never received.
    """
    ranges = [(0, radio.compute_range(-gain))]
    floors = 1
    while (meters := radio.compute_range(floors * radio.FLOOR_LOSS_DB - gain)) >= (
        floors * radio.FLOOR_HEIGHT_METERS
    ):
        ranges += [(-floors, meters), (floors, meters)]
        floors += 1
    return tuple(ranges)


_RANGES: Final = _compute_ranges(0.0)

_EMPTY_FLOOR: Final[tuple[list[MeshNode], list[float]]] = ([], [])


def _by_x(node: MeshNode) -> float:
    return node.position.x


def _by_strength(candidate: tuple[float, MeshNode]) -> float:
    return -candidate[0]


def _select_receivers(candidates: list[tuple[float, MeshNode]]) -> list[tuple[float, MeshNode]]:
    """Select receivers: half of them the strongest, the other half reliable receivers near the gateway.

    Without the second half, the nodes of a dense group would track only each other.
    """
    half = MAX_RECEIVERS // 2
    near_gateway = sorted(
        (entry for entry in candidates[half:] if entry[0] >= _RELIABLE_DBM), key=_by_hops_to_gateway
    )[:half]
    rest = [entry for entry in candidates[half:] if entry not in near_gateway]
    return sorted(candidates[:half] + near_gateway + rest[: half - len(near_gateway)], key=_by_strength)


def _by_hops_to_gateway(candidate: tuple[float, MeshNode]) -> float:
    """Return the estimated number of hops from a candidate to the gateway, as a sort key."""
    position = candidate[1].position
    return hypot(position.x, position.y) / _HOP_METERS + abs(position.floor)
