"""Which subscribers a topic reaches, and which topics a filter matches [MQTT-4.7.1-1 to MQTT-4.7.3-4].

Both trees have a branch for each level. The work of a search grows with the branches that fit, not with the
number of subscribers or topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

Thing = TypeVar("Thing")


class _Branch(Generic[Thing]):
    __slots__ = ("below", "here")

    def __init__(self) -> None:
        self.below: dict[str, _Branch[Thing]] = {}
        self.here: dict[Thing, int] = {}


class Filters(Generic[Thing]):
    """Subscribers by their filters."""

    def __init__(self) -> None:
        self._root: _Branch[Thing] = _Branch()

    def add(self, wanted: str, subscriber: Thing, qos: int) -> None:
        """Let a subscriber have what the filter matches; again: with another QoS."""
        branch = self._root
        for level in wanted.split("/"):
            branch = branch.below.setdefault(level, _Branch())
        branch.here[subscriber] = qos

    def remove(self, wanted: str, subscriber: Thing) -> None:
        """Take that back, and cut branches that lead nowhere."""
        path, branch = [], self._root
        for level in wanted.split("/"):
            if level not in branch.below:
                return
            path.append((branch, level))
            branch = branch.below[level]
        branch.here.pop(subscriber, None)
        for above, level in reversed(path):
            left = above.below[level]
            if left.here or left.below:
                return
            del above.below[level]

    def find(self, topic: str) -> dict[Thing, int]:
        """Who gets a message on this topic: each once, with the highest QoS of all filters that match."""
        found: dict[Thing, int] = {}
        branches = [self._root]
        for depth, level in enumerate(topic.split("/")):
            names = (level,) if not depth and level.startswith("$") else (level, "+")  # [MQTT-4.7.2-1]
            if len(names) > 1:
                _collect(branches, found)
            branches = [below for each in branches for name in names if (below := each.below.get(name))]
            if not branches:
                return found
        _collect(branches, found)  # `a/#` matches `a` too
        for branch in branches:
            _merge(branch.here, found)
        return found

    def reach(self, begin: str) -> bool:
        """Whether some filter may match a topic that begins like this, up to a slash."""
        branches = [self._root]
        *levels, _ = begin.split("/")
        for level in levels:
            if any("#" in branch.below for branch in branches):
                return True
            branches = [
                below for branch in branches for name in (level, "+") if (below := branch.below.get(name))
            ]
        return any(branch.below for branch in branches)


def _collect(branches: list[_Branch[Thing]], found: dict[Thing, int]) -> None:
    """Those who want everything from here on."""
    for branch in branches:
        if (rest := branch.below.get("#")) is not None:
            _merge(rest.here, found)


def _merge(some: dict[Thing, int], found: dict[Thing, int]) -> None:
    for subscriber, qos in some.items():
        if found.get(subscriber, -1) < qos:
            found[subscriber] = qos


class _Leaf(Generic[Thing]):
    __slots__ = ("below", "thing")

    def __init__(self) -> None:
        self.below: dict[str, _Leaf[Thing]] = {}
        self.thing: Thing | None = None


class Names(Generic[Thing]):
    """Things by the topic they are kept under."""

    def __init__(self) -> None:
        self._root: _Leaf[Thing] = _Leaf()

    def put(self, topic: str, thing: Thing) -> None:
        """Keep a thing in the place of what was there."""
        leaf = self._root
        for level in topic.split("/"):
            leaf = leaf.below.setdefault(level, _Leaf())
        leaf.thing = thing

    def remove(self, topic: str) -> None:
        """Keep nothing there."""
        path, leaf = [], self._root
        for level in topic.split("/"):
            if level not in leaf.below:
                return
            path.append((leaf, level))
            leaf = leaf.below[level]
        leaf.thing = None
        for above, level in reversed(path):
            left = above.below[level]
            if left.thing is not None or left.below:
                return
            del above.below[level]

    def matching(self, wanted: str) -> Iterator[Thing]:
        """All things whose topics a filter matches."""
        leaves = [self._root]
        for depth, level in enumerate(wanted.split("/")):
            if level == "#":
                for leaf in leaves:
                    yield from _all(leaf, at_root=not depth)
                return
            leaves = [below for leaf in leaves for below in _next(leaf, level, at_root=not depth)]
        yield from (leaf.thing for leaf in leaves if leaf.thing is not None)


def _next(leaf: _Leaf[Thing], level: str, *, at_root: bool) -> list[_Leaf[Thing]]:
    if level != "+":
        return [leaf.below[level]] if level in leaf.below else []
    return [below for name, below in leaf.below.items() if not (at_root and name.startswith("$"))]


def _all(leaf: _Leaf[Thing], *, at_root: bool) -> Iterator[Thing]:
    """A leaf and all below it."""
    if leaf.thing is not None:
        yield leaf.thing
    left = _next(leaf, "+", at_root=at_root)
    while left:
        each = left.pop()
        if each.thing is not None:
            yield each.thing
        left += each.below.values()
