"""A complete gateway over a simulated mesh, and fleets of them.

gateway         one gateway, without a connection: messages and time go in, messages and chores come out
session, fleet  gateways on a broker: a connection for each, one time for all; `pace` tells how that passes
world           the simulated world: sites, radio, the mesh, devices, what they sense and keep
life            what devices do by themselves: the rhythm of reports, motion, buttons, restarts
answering       requests, through the mesh (`traffic`) to their `target` and back as an `exchange`
acknowledging   acks, and the backfill of samples that somebody misses
writing         what a write does: `commands` and `effects`; `properties` is what reading finds
updates         firmware updates in three ways; `images` gets what they need
faults, outbox  trouble on request
claims          gateways get their credentials from a service
"""

from meshfleet.gateway.faults import Faults
from meshfleet.gateway.fleet import Fleet
from meshfleet.gateway.gateway import Gateway
from meshfleet.gateway.pace import ByClock, ByRate
from meshfleet.gateway.settings import Mode, Settings
from meshfleet.gateway.world.clock import Clock
from meshfleet.gateway.world.mesh import Mesh
from meshfleet.gateway.world.site import Site, describe, generate, parse

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
