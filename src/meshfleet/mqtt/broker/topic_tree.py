"""Trees that find the subscribers of a topic, or the topics that match a filter [MQTT-4.7.1-1 to 4.7.3-4].

Both trees have a node for each topic level. The work of a search grows with the nodes that match, not with
the number of subscribers or topics.
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
    """Stores subscribers by topic filter, and finds the subscribers of a topic."""

    def __init__(self) -> None:
        self._root: _FilterNode[Item] = _FilterNode()

    def add(self, topic_filter: str, subscriber: Item, qos: int) -> None:
        """Add a subscriber to a topic filter, or change the QoS if the subscriber has subscribed before."""
        node = self._root
        for level in topic_filter.split("/"):
            node = node.children.setdefault(level, _FilterNode())
        node.subscribers[subscriber] = qos

    def remove(self, topic_filter: str, subscriber: Item) -> None:
        """Remove a subscriber from a topic filter, and delete the tree nodes that become empty."""
        path, node = [], self._root
        for level in topic_filter.split("/"):
            if level not in node.children:
                return
            path.append((node, level))
            node = node.children[level]
        node.subscribers.pop(subscriber, None)
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.subscribers or child.children:
                return
            del parent.children[level]

    def find_subscribers(self, topic: str) -> dict[Item, int]:
        """Return the subscribers of a topic, each once, with the highest QoS of all filters that match."""
        found: dict[Item, int] = {}
        nodes = [self._root]
        for depth, level in enumerate(topic.split("/")):
            names = (level,) if not depth and level.startswith("$") else (level, "+")  # [MQTT-4.7.2-1]
            if len(names) > 1:
                _add_multilevel_subscribers(nodes, found)
            nodes = [child for node in nodes for name in names if (child := node.children.get(name))]
            if not nodes:
                return found
        _add_multilevel_subscribers(nodes, found)  # `a/#` matches `a` too
        for node in nodes:
            _add_subscribers(node.subscribers, found)
        return found

    def may_match_below(self, prefix: str) -> bool:
        """Return whether any filter may match a topic that starts with `prefix`. `prefix` ends in a slash."""
        nodes = [self._root]
        *levels, _ = prefix.split("/")
        for level in levels:
            if any("#" in node.children for node in nodes):
                return True
            nodes = [child for node in nodes for name in (level, "+") if (child := node.children.get(name))]
        return any(node.children for node in nodes)


def _add_multilevel_subscribers(nodes: list[_FilterNode[Item]], found: dict[Item, int]) -> None:
    """Add to `found` the subscribers of filters that have `#` as the level below one of these nodes."""
    for node in nodes:
        if (child := node.children.get("#")) is not None:
            _add_subscribers(child.subscribers, found)


def _add_subscribers(subscribers: dict[Item, int], found: dict[Item, int]) -> None:
    for subscriber, qos in subscribers.items():
        if found.get(subscriber, -1) < qos:
            found[subscriber] = qos


class _TopicNode(Generic[Item]):
    __slots__ = ("children", "item")

    def __init__(self) -> None:
        self.children: dict[str, _TopicNode[Item]] = {}
        self.item: Item | None = None


class TopicTree(Generic[Item]):
    """Stores one item per topic, and finds the items whose topics match a filter."""

    def __init__(self) -> None:
        self._root: _TopicNode[Item] = _TopicNode()

    def put(self, topic: str, item: Item) -> None:
        """Store the item of a topic, and replace the previous item of the topic."""
        node = self._root
        for level in topic.split("/"):
            node = node.children.setdefault(level, _TopicNode())
        node.item = item

    def remove(self, topic: str) -> None:
        """Remove the item of a topic, and delete the tree nodes that become empty."""
        path, node = [], self._root
        for level in topic.split("/"):
            if level not in node.children:
                return
            path.append((node, level))
            node = node.children[level]
        node.item = None
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.item is not None or child.children:
                return
            del parent.children[level]

    def find_matching(self, topic_filter: str) -> Iterator[Item]:
        """Yield the items whose topics match a topic filter."""
        nodes = [self._root]
        for depth, level in enumerate(topic_filter.split("/")):
            if level == "#":
                for node in nodes:
                    yield from _iterate_items(node, at_root=not depth)
                return
            nodes = [
                child for node in nodes for child in _find_matching_children(node, level, at_root=not depth)
            ]
        yield from (node.item for node in nodes if node.item is not None)


def _find_matching_children(node: _TopicNode[Item], level: str, *, at_root: bool) -> list[_TopicNode[Item]]:
    """Return the child nodes that one level of a topic filter matches.

    At the root, `+` does not match names that start with `$` [MQTT-4.7.2-1].
    """
    if level != "+":
        return [node.children[level]] if level in node.children else []
    return [child for name, child in node.children.items() if not (at_root and name.startswith("$"))]


def _iterate_items(root: _TopicNode[Item], *, at_root: bool) -> Iterator[Item]:
    """Yield the item of a tree node and all items below this node.

    If the node is the root, omit topics that start with `$`.
    """
    if root.item is not None:
        yield root.item
    nodes = _find_matching_children(root, "+", at_root=at_root)
    while nodes:
        node = nodes.pop()
        if node.item is not None:
            yield node.item
        nodes += node.children.values()
