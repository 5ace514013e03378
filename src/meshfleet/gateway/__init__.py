"""A complete gateway over a simulated mesh, and fleets of them.

gateway         one gateway, without a connection: messages and time go in, messages and chores come out
core            what its parts share; `traffic` travels in the mesh, `reporting` and `outbox` lead out of it
life            what devices do by themselves: the rhythm of reports, motion, buttons, restarts
requests        what is asked of devices, and how they answer
updates         firmware updates in three ways
memory          what devices keep when the emulator stops
faults          trouble on request
world           the simulated world: sites, radio, the mesh, devices, what they sense and keep
online          gateways on a broker
"""

from meshfleet.gateway.faults import Faults
from meshfleet.gateway.gateway import Gateway
from meshfleet.gateway.online.fleet import Fleet
from meshfleet.gateway.online.pace import ByClock, ByRate
from meshfleet.gateway.settings import Mode, Settings
from meshfleet.gateway.world.clock import Clock
from meshfleet.gateway.world.layout import generate
from meshfleet.gateway.world.mesh import Mesh
from meshfleet.gateway.world.site import Site
from meshfleet.gateway.world.sitefile import describe, parse

__all__ = [
    "ByClock",
    "ByRate",
    "Clock",
    "Faults",
    "Fleet",
    "Gateway",
    "Mesh",
    "Mode",
    "Settings",
    "Site",
    "describe",
    "generate",
    "parse",
]
