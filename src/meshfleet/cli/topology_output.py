"""Prints the mesh of a gateway as a tree, and the path of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli.output import Column, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.rest.topology import DevicePath, Topology, TopologyNode

_SIGNAL_COLORS: Final = {"good": "green", "fair": None, "weak": "yellow", "very-weak": "red"}

_ALTERNATIVE_COLUMNS: Final = (
    Column("parent", lambda each: each.parent, no_wrap=True),
    Column("rssi", lambda each: each.rssi),
    Column("signal", lambda each: each.signal),
    Column("difference (dB)", lambda each: each.difference),
    Column("path", lambda each: each.has_path),
    Column("gateway", lambda each: each.gateway, no_wrap=True),
)


def print_topology(topology: Topology) -> None:
    """Print a tree with one node per line, then its orphans. Colors are used only on a terminal."""
    children: dict[str | None, list[TopologyNode]] = {}
    for node in topology.nodes:
        if not node.orphan:
            children.setdefault(node.parent, []).append(node)
    root = topology.nodes[0]
    click.echo(f"{topology.gateway}  gateway, {root.descendants} devices at {topology.at}")
    for line in _list_branches(children, topology.gateway):
        click.echo(line)
    if topology.orphans:
        click.echo(f"Heard, but without a known path to the gateway: {', '.join(topology.orphans)}")


def _list_branches(children: dict[str | None, list[TopologyNode]], root: str) -> Iterator[str]:
    """Yield a line for each node below the root, without recursion: a reported tree may be very deep."""
    stack = [("", each) for each in reversed(children.get(root, []))]
    while stack:
        indent, node = stack.pop()
        is_last = not stack or stack[-1][0] != indent
        yield f"{indent}{'└─ ' if is_last else '├─ '}{node.device}  {_describe_node(node)}"
        below = indent + ("   " if is_last else "│  ")
        stack += [(below, each) for each in reversed(children.get(node.device.removeprefix("bmac-"), []))]


def _describe_node(node: TopologyNode) -> str:
    parts = []
    if node.rssi is not None and node.signal is not None:
        parts.append(click.style(f"{node.rssi} dBm {node.signal}", fg=_SIGNAL_COLORS[node.signal]))
    if node.cuts_off:
        parts.append(f"cuts off {node.cuts_off}")
    return ", ".join(parts)


def print_path(path: DevicePath) -> None:
    """Print the hops of a device to its gateway, and the other parents that hear it."""
    if path.gateway is None:
        click.echo(f"{path.device} was not heard recently.")
        return
    for hop in path.hops:
        signal = click.style(f"{hop.rssi} dBm {hop.signal}", fg=_SIGNAL_COLORS[hop.signal])
        click.echo(f"{hop.device} -> {hop.parent}  {signal}, {hop.age:g} s ago")
    if not path.complete:
        click.echo(f"No path from here to gateway {path.gateway} is known.")
    if path.alternatives:
        click.echo("Other parents that hear it:")
        print_table(_ALTERNATIVE_COLUMNS, path.alternatives)
