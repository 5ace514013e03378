"""A place in the tree of a mesh."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from meshfleet.gateway.world.products import Role

if TYPE_CHECKING:
    from meshfleet.gateway.world.places import Place
    from meshfleet.wire.ids import Mac

MAX_CHILDREN: Final = 18
"""gateway-18."""

CUT_OFF: Final = -1
"""The depth of what hangs on nobody."""

NOTHING: Final = array("f")


class Node:
    """A place in the tree. There may be 250,000 in a process."""

    __slots__ = (
        "capacity",
        "children",
        "depth",
        "gain",
        "hearers",
        "joined",
        "key",
        "mac",
        "means",
        "parent",
        "place",
        "role",
    )

    def __init__(self, mac: Mac, role: Role, place: Place, *, key: int) -> None:
        self.mac = mac
        self.role = role
        self.place = place
        self.key = key
        self.capacity = 0 if role is Role.LEAF else MAX_CHILDREN
        """Children it may have."""
        self.gain = 0.0
        """dB by which it sends louder than usual."""
        self.joined = False
        """Whether it holds or wants a link."""
        self.parent: Node | None = None
        self.children = 0
        self.depth = CUT_OFF
        self.hearers: tuple[Node, ...] = ()
        """Who may hear it, the strongest on average first."""
        self.means: array[float] = NOTHING
        """The mean RSSI at each of them, without gain."""

    def __repr__(self) -> str:
        return f"<{self.role.name.lower()} {self.mac} at depth {self.depth}>"
