"""Which subscribers a topic reaches, and which topics a filter matches [MQTT-4.7.1-1 to MQTT-4.7.3-4].

Both trees have a branch for each level. The work of a search grows with the branches that fit, not with the
number of subscribers or topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

Item = TypeVar("Item")


class _FilterNode(Generic[Item]):
    __slots__ = ("children", "subscribers")

    def __init__(self) -> None:
        self.children: dict[str, _FilterNode[Item]] = {}
        self.subscribers: dict[Item, int] = {}


class SubscriptionTree(Generic[Item]):
    """Subscribers by their filters."""

    def __init__(self) -> None:
        self._root: _FilterNode[Item] = _FilterNode()

    def add(self, topic_filter: str, subscriber: Item, qos: int) -> None:
        """Let a subscriber have what the filter matches; again: with another QoS."""
        branch = self._root
        for level in topic_filter.split("/"):
            branch = branch.children.setdefault(level, _FilterNode())
        branch.subscribers[subscriber] = qos

    def remove(self, topic_filter: str, subscriber: Item) -> None:
        """Take that back, and cut branches that lead nowhere."""
        path, branch = [], self._root
        for level in topic_filter.split("/"):
            if level not in branch.children:
                return
            path.append((branch, level))
            branch = branch.children[level]
        branch.subscribers.pop(subscriber, None)
        for above, level in reversed(path):
            left = above.children[level]
            if left.subscribers or left.children:
                return
            del above.children[level]

    def find_subscribers(self, topic: str) -> dict[Item, int]:
        """Who gets a message on this topic: each once, with the highest QoS of all filters that match."""
        found: dict[Item, int] = {}
        branches = [self._root]
        for depth, level in enumerate(topic.split("/")):
            names = (level,) if not depth and level.startswith("$") else (level, "+")  # [MQTT-4.7.2-1]
            if len(names) > 1:
                _add_multilevel_subscribers(branches, found)
            branches = [below for each in branches for name in names if (below := each.children.get(name))]
            if not branches:
                return found
        _add_multilevel_subscribers(branches, found)  # `a/#` matches `a` too
        for branch in branches:
            _add_subscribers(branch.subscribers, found)
        return found

    def may_match_below(self, prefix: str) -> bool:
        """Whether some filter may match a topic that begins like this, up to a slash."""
        branches = [self._root]
        *levels, _ = prefix.split("/")
        for level in levels:
            if any("#" in branch.children for branch in branches):
                return True
            branches = [
                below for branch in branches for name in (level, "+") if (below := branch.children.get(name))
            ]
        return any(branch.children for branch in branches)


def _add_multilevel_subscribers(branches: list[_FilterNode[Item]], found: dict[Item, int]) -> None:
    """Those who want everything from here on."""
    for branch in branches:
        if (rest := branch.children.get("#")) is not None:
            _add_subscribers(rest.subscribers, found)


def _add_subscribers(some: dict[Item, int], found: dict[Item, int]) -> None:
    for subscriber, qos in some.items():
        if found.get(subscriber, -1) < qos:
            found[subscriber] = qos


class _TopicNode(Generic[Item]):
    __slots__ = ("children", "item")

    def __init__(self) -> None:
        self.children: dict[str, _TopicNode[Item]] = {}
        self.item: Item | None = None


class TopicTree(Generic[Item]):
    """Things by the topic they are kept under."""

    def __init__(self) -> None:
        self._root: _TopicNode[Item] = _TopicNode()

    def put(self, topic: str, item: Item) -> None:
        """Keep a thing in the place of what was there."""
        leaf = self._root
        for level in topic.split("/"):
            leaf = leaf.children.setdefault(level, _TopicNode())
        leaf.item = item

    def remove(self, topic: str) -> None:
        """Keep nothing there."""
        path, leaf = [], self._root
        for level in topic.split("/"):
            if level not in leaf.children:
                return
            path.append((leaf, level))
            leaf = leaf.children[level]
        leaf.item = None
        for above, level in reversed(path):
            left = above.children[level]
            if left.item is not None or left.children:
                return
            del above.children[level]

    def find_matching(self, topic_filter: str) -> Iterator[Item]:
        """All things whose topics a filter matches."""
        leaves = [self._root]
        for depth, level in enumerate(topic_filter.split("/")):
            if level == "#":
                for leaf in leaves:
                    yield from _items_below(leaf, at_root=not depth)
                return
            leaves = [
                below for leaf in leaves for below in _matching_children(leaf, level, at_root=not depth)
            ]
        yield from (leaf.item for leaf in leaves if leaf.item is not None)


def _matching_children(leaf: _TopicNode[Item], level: str, *, at_root: bool) -> list[_TopicNode[Item]]:
    if level != "+":
        return [leaf.children[level]] if level in leaf.children else []
    return [below for name, below in leaf.children.items() if not (at_root and name.startswith("$"))]


def _items_below(leaf: _TopicNode[Item], *, at_root: bool) -> Iterator[Item]:
    """A leaf and all below it."""
    if leaf.item is not None:
        yield leaf.item
    left = _matching_children(leaf, "+", at_root=at_root)
    while left:
        each = left.pop()
        if each.item is not None:
            yield each.item
        left += each.children.values()
