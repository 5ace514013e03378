"""Who hears whom: for each node the few that matter, found without looking at all of a large site."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from math import hypot
from typing import TYPE_CHECKING, Final

from meshfleet.gateway.world import radio

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meshfleet.gateway.world.node import Node
    from meshfleet.gateway.world.places import Place, Walls
    from meshfleet.wire.ids import Mac

MAX_HEARERS: Final = 6
"""Of those that hear a node we follow so many; a choice among more would be no better."""

_HOP: Final = 12.0
"""Metres that a link spans without trouble."""
_SOUND: Final = -86.0
"""dBm that it has then."""


class Ears:
    """The nodes that listen, by floor and from west to east, as most of a large site is too far away."""

    def __init__(self, listeners: Iterable[Node], walls: Walls) -> None:
        self._walls = walls
        self._floors: dict[int, tuple[list[Node], list[float]]] = {}
        for node in sorted(listeners, key=_west):
            nodes, xs = self._floors.setdefault(node.place.floor, ([], []))
            nodes.append(node)
            xs.append(node.place.x)

    def of(self, node: Node, *, wished: Mac | None = None) -> tuple[tuple[Node, ...], array[float]]:
        """Who hears a node and how well; a wished parent is among them when it hears the node at all."""
        heard = [
            (level, hearer)
            for hearer in self._near(node.place)
            if hearer is not node
            and (level := radio.mean(node.place, hearer.place, self._walls)) >= radio.HEARD
        ]
        heard.sort(key=_strongest)
        chosen = _some(heard) if len(heard) > MAX_HEARERS else heard
        if wished is not None and all(hearer.mac != wished for _, hearer in chosen):
            chosen[-1:] = [each for each in heard if each[1].mac == wished] or chosen[-1:]
            chosen.sort(key=_strongest)
        return tuple(hearer for _, hearer in chosen), array("f", [level for level, _ in chosen])

    def _near(self, place: Place) -> Iterator[Node]:
        for floors, reach in _REACHES:
            nodes, xs = self._floors.get(place.floor + floors, _NOBODY)
            for node in nodes[bisect_left(xs, place.x - reach) : bisect_right(xs, place.x + reach)]:
                if abs(node.place.y - place.y) <= reach:
                    yield node


_REACHES: Final = tuple((floors, radio.reach(abs(floors) * radio.FLOOR)) for floors in (0, -1, 1))
"""Two floors away nobody is heard."""

_NOBODY: Final[tuple[list[Node], list[float]]] = ([], [])


def _west(node: Node) -> float:
    return node.place.x


def _strongest(heard: tuple[float, Node]) -> float:
    return -heard[0]


def _some(heard: list[tuple[float, Node]]) -> list[tuple[float, Node]]:
    """Half of them the strongest, and half on the way home: a crowd would know only itself."""
    half = MAX_HEARERS // 2
    homeward = sorted((each for each in heard[half:] if each[0] >= _SOUND), key=_hops_home)[:half]
    rest = [each for each in heard[half:] if each not in homeward]
    return sorted(heard[:half] + homeward + rest[: half - len(homeward)], key=_strongest)


def _hops_home(heard: tuple[float, Node]) -> float:
    place = heard[1].place
    return hypot(place.x, place.y) / _HOP + abs(place.floor)
