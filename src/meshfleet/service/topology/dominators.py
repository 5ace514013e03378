"""Dominators of a graph: which node lies on every path from the root to another node. Pure.

The algorithm is that of Lengauer and Tarjan with path compression: O(edges * log(nodes)), whatever the graph
looks like. Gateways report the links, so a graph may be arbitrary, with cycles and long chains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def count_dominated(successors: Sequence[Sequence[int]]) -> list[int]:
    """Return for each node how many other nodes it dominates: they can be reached only through it.

    Node 0 is the root. `successors` has for each node the nodes to which its edges lead. A node that cannot
    be reached from the root dominates none, and is dominated by none.
    """
    order, parents = _number_depth_first(successors)
    counts = [0] * len(successors)
    if len(order) > 1:
        dominators = _find_dominators(successors, order, parents)
        sizes = [1] * len(order)
        for number in range(len(order) - 1, 0, -1):  # a dominator has a lower number
            sizes[dominators[number]] += sizes[number]
        for number, node in enumerate(order):
            counts[node] = sizes[number] - 1
    return counts


def _number_depth_first(successors: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Return the nodes that the root reaches in depth-first order, and the position of the parent of each."""
    order: list[int] = []
    parents: list[int] = []
    is_numbered = [False] * len(successors)
    stack = [(0, 0)]
    while stack:
        node, parent = stack.pop()
        if is_numbered[node]:
            continue
        is_numbered[node] = True
        number = len(order)
        order.append(node)
        parents.append(parent)
        stack += [(each, number) for each in successors[node] if not is_numbered[each]]
    return order, parents


def _find_dominators(
    successors: Sequence[Sequence[int]], order: Sequence[int], parents: Sequence[int]
) -> list[int]:
    """Return the number of the immediate dominator of each node by its depth-first number."""
    count = len(order)
    numbers = {node: number for number, node in enumerate(order)}
    predecessors: list[list[int]] = [[] for _ in range(count)]
    for number, node in enumerate(order):
        for each in successors[node]:
            predecessors[numbers[each]].append(number)
    forest = _Forest(count)
    semi, dominators = forest.semi, [0] * count
    buckets: list[list[int]] = [[] for _ in range(count)]
    for number in range(count - 1, 0, -1):
        semi[number] = min((semi[forest.find_best(each)] for each in predecessors[number]), default=number)
        buckets[semi[number]].append(number)
        parent = parents[number]
        forest.ancestors[number] = parent
        for each in buckets[parent]:
            best = forest.find_best(each)
            dominators[each] = best if semi[best] < semi[each] else parent
        buckets[parent].clear()
    for number in range(1, count):
        if dominators[number] != semi[number]:
            dominators[number] = dominators[dominators[number]]
    return dominators


class _Forest:
    """Forest of the nodes processed so far, with compressed paths to their roots."""

    def __init__(self, count: int) -> None:
        self.semi = list(range(count))
        self.ancestors = [-1] * count
        self._best = list(range(count))
        """Node with the lowest `semi` on the compressed part of the path to the root."""

    def find_best(self, node: int) -> int:
        """Return the node with the lowest `semi` on the path from `node` to its root, without the root."""
        ancestors, best, semi = self.ancestors, self._best, self.semi
        if ancestors[node] < 0:
            return node
        path = [node]
        while ancestors[ancestors[path[-1]]] >= 0:
            path.append(ancestors[path[-1]])
        for each in reversed(path[:-1]):
            ancestor = ancestors[each]
            if semi[best[ancestor]] < semi[best[each]]:
                best[each] = best[ancestor]
            ancestors[each] = ancestors[ancestor]
        return best[node]
