"""SDK for programs without an event loop: `from meshfleet.client.blocking import Fleet, Mesh`.

Each method runs the asynchronous method with this name in a background thread, and waits for the result.
"""

from meshfleet.client.blocking.fleet import Fleet
from meshfleet.client.blocking.mesh import Mesh

__all__ = ["Fleet", "Mesh"]
