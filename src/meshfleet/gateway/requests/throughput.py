"""Throughput tests: packets that say nothing, sent to be counted (gateway-36)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from meshfleet.gateway.core import Core
    from meshfleet.gateway.world.device import Device, ThroughputTest

_SHORTEST: Final = 0.010
"""Seconds: no radio sends faster."""


class Throughput:
    """The tests of one gateway, up and down."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def start(self, sender: Device, test: ThroughputTest, receivers: list[Device]) -> bool:
        """Start a test, or stop the one that runs when there is nothing to send; False: one runs already."""
        if not test.left:
            sender.test = None
            return True
        if sender.test is not None:
            return False
        sender.test = test
        for receiver in receivers:
            receiver.received = 0
        self._send(sender, test, receivers, self._core.agenda.now)
        return True

    def _send(self, sender: Device, test: ThroughputTest, receivers: list[Device], _t: float) -> None:
        if sender.test is not test:
            return  # stopped, or the sender has restarted
        for _ in range(min(test.burst, test.left)):
            if self._core.traffic.is_full(sender.node, test.priority):
                break  # the rest has to wait: nobody gains from packets that are lost at once
            test.left -= 1
            for receiver in receivers:
                self._send_one(sender, receiver, test.priority)
        if test.left:
            pause = max(test.interval, _SHORTEST)
            self._core.agenda.after(pause, partial(self._send, sender, test, receivers))
        else:
            sender.test = None

    def _send_one(self, sender: Device, receiver: Device, priority: int) -> None:
        """Send one packet; who is not in the tree neither sends nor receives."""
        mesh = self._core.mesh
        down = mesh.route((receiver if sender is self._core.own else sender).node)
        if down is None or sender.is_away:
            return
        path = (mesh.root, *down)
        if sender is not self._core.own:
            path = path[::-1]
        self._core.traffic.send(path, priority=priority, arrived=partial(self._count, receiver))

    def _count(self, receiver: Device, _t: float) -> None:
        if not receiver.is_away:
            receiver.received += 1
