"""Text output of topologies, paths and parent changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshfleet.cli.commands.watch import LiveReportFilter, print_report
from meshfleet.cli.topology_output import print_path, print_topology
from meshfleet.rest.live import LiveParentChange
from meshfleet.rest.topology import AlternativeParent, DevicePath, Hop, Topology, TopologyNode

if TYPE_CHECKING:
    import pytest

G, A, B, C, D = (f"02005e00000{number}" for number in range(1, 6))
AT = "2026-11-15T10:07:20.585Z"


def node(mac: str, parent: str | None, depth: int | None, **fields: Any) -> TopologyNode:
    values: dict[str, Any] = {"rssi": -60, "signal": "good", "children": 0, "descendants": 0, "cuts_off": 0}
    return TopologyNode(
        device=f"bmac-{mac}",
        parent=parent,
        depth=depth,
        seen_at=AT,
        orphan=depth is None,
        load=1.0,
        **{**values, **fields},
    )


def test_a_topology_is_printed_as_a_tree(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        node(G, None, 0, rssi=None, signal=None, descendants=3),
        node(A, G, 1, cuts_off=2),
        node(D, G, 1, rssi=-90, signal="very-weak"),
        node(B, A, 2),
        node(C, B, None),
    ]
    orphans = [f"bmac-{C}"]
    print_topology(Topology(gateway=G, at=AT, nodes=nodes, weak_links=[], orphans=orphans, single_points=[]))
    assert capsys.readouterr().out.splitlines() == [
        f"{G}  gateway, 3 devices at {AT}",
        f"├─ bmac-{A}  -60 dBm good, cuts off 2",
        f"│  └─ bmac-{B}  -60 dBm good",
        f"└─ bmac-{D}  -90 dBm very-weak",
        f"Heard, but without a known path to the gateway: bmac-{C}",
    ]


def test_a_path_is_printed_hop_by_hop(capsys: pytest.CaptureFixture[str]) -> None:
    hop = Hop(device=f"bmac-{A}", parent=B, rssi=-75, signal="fair", seen_at=AT, age=2.5)
    alternative = AlternativeParent(
        parent=C,
        gateway=G,
        rssi=-80,
        signal="fair",
        seen_at=AT,
        difference=-5.0,
        has_path=True,
        depth=2,
    )
    path = DevicePath(
        device=f"bmac-{A}", gateway=G, at=AT, complete=False, hops=[hop], alternatives=[alternative]
    )
    print_path(path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        f"bmac-{A} -> {B}  -75 dBm fair, 2.5 s ago",
        f"No path from here to gateway {G} is known.",
        "Other parents that hear it:",
    ]
    assert lines[4].split() == [C, "-80", "fair", "-5.0", "yes", G]
    print_path(DevicePath(device=f"bmac-{A}", gateway=None, at=AT, complete=False, hops=[], alternatives=[]))
    assert capsys.readouterr().out == f"bmac-{A} was not heard recently.\n"


def test_a_parent_change_is_printed_if_its_kind_is_selected(capsys: pytest.CaptureFixture[str]) -> None:
    change = LiveParentChange(device=f"bmac-{A}", parent=B, previous=C, gateway=G, time=AT)
    print_report(change, as_json=False)
    assert capsys.readouterr().out.split() == [AT, f"bmac-{A}", "topology", "parent", f"{B},", "before", C]
    empty = frozenset[str]()
    for kinds, is_selected in ({"topology"}, True), ({"rssi"}, False):
        selected = LiveReportFilter(devices=empty, gateways=empty, kinds=frozenset(kinds), names=empty)
        assert selected.matches(change) is is_selected
