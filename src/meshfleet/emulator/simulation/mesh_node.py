"""Nodes of the tree of a mesh, and how deep they are in it."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from meshfleet.emulator.simulation.products import NodeRole

if TYPE_CHECKING:
    from meshfleet.emulator.simulation.site import SitePosition
    from meshfleet.protocol.ids import Mac

MAX_DEPTH: Final = 11
"""Maximum depth of the mesh tree (gateway-17)."""

MAX_CHILDREN: Final = 18
"""Maximum number of children of a mesh node (gateway-18)."""

DISCONNECTED_DEPTH: Final = -1
"""Depth of a mesh node without a route to the gateway."""

_NO_RSSI: Final = array("f")


class MeshNode:
    """Gateway or device as a node of the mesh tree. A process may hold 250,000 nodes."""

    __slots__ = (
        "capacity",
        "child_count",
        "depth",
        "mac",
        "mean_rssi",
        "noise_key",
        "parent",
        "position",
        "receivers",
        "role",
        "tx_gain",
        "wants_link",
    )

    def __init__(self, mac: Mac, role: NodeRole, position: SitePosition, *, noise_key: int) -> None:
        self.mac = mac
        self.role = role
        self.position = position
        self.noise_key = noise_key
        self.capacity = 0 if role is NodeRole.LEAF else MAX_CHILDREN
        """Maximum number of children of this node."""
        self.tx_gain = 0.0
        """Transmit power in dB relative to the default."""
        self.wants_link = False
        """Whether the node has or seeks a link to a parent."""
        self.parent: MeshNode | None = None
        self.child_count = 0
        self.depth = DISCONNECTED_DEPTH
        self.receivers: tuple[MeshNode, ...] = ()
        """Nodes that may receive this node: first its possible parents; see `Receivers`."""
        self.mean_rssi: array[float] = _NO_RSSI
        """Mean RSSI in dBm at each node of `receivers`, without `tx_gain`."""

    def __repr__(self) -> str:
        return f"<{self.role.name.lower()} {self.mac} at depth {self.depth}>"


def compute_child_depth(parent: MeshNode | None) -> int:
    """Return the depth of a child of `parent` in the mesh tree."""
    return DISCONNECTED_DEPTH if parent is None or parent.depth == DISCONNECTED_DEPTH else parent.depth + 1


def is_descendant(node: MeshNode, ancestor: MeshNode) -> bool:
    """Return whether `node` is `ancestor` itself or below `ancestor` in the mesh tree."""
    current: MeshNode | None = node
    while current is not None and current is not ancestor:
        current = current.parent
    return current is ancestor
