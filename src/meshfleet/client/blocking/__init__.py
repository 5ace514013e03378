"""The SDK for programs without an event loop: `from meshfleet.client.blocking import Fleet, Mesh`.

Every method of the asynchronous SDK is called in an event loop that runs in a thread of its own.
"""

from meshfleet.client.blocking.fleet import Fleet
from meshfleet.client.blocking.mesh import Mesh

__all__ = ["Fleet", "Mesh"]
