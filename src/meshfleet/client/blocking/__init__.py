"""The SDK for programs without an event loop: `from meshfleet.client.blocking import Fleet, Mesh`.

fleet           a Meshfleet service over REST
mesh            gateways over any MQTT broker
faces           the asynchronous methods as methods that wait
walking         their iterators as plain ones
running         the event loop behind them, in a thread of its own
"""

from meshfleet.client.blocking.fleet import Fleet
from meshfleet.client.blocking.mesh import Mesh

__all__ = ["Fleet", "Mesh"]
