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

from meshfleet.emulator.gateway import GatewayEmulator
from meshfleet.emulator.runtime.fleet import EmulatedFleet
from meshfleet.emulator.runtime.simulation_pace import RealTimePace, ReportRatePace
from meshfleet.emulator.settings import EmulatorSettings, Faults, ReportMode
from meshfleet.emulator.simulation.clock import SimulatedClock
from meshfleet.emulator.simulation.mesh import SimulatedMesh
from meshfleet.emulator.simulation.site import Site
from meshfleet.emulator.simulation.site_file import describe_site, parse_site
from meshfleet.emulator.simulation.site_generator import generate_site

__all__ = [
    "EmulatedFleet",
    "EmulatorSettings",
    "Faults",
    "GatewayEmulator",
    "RealTimePace",
    "ReportMode",
    "ReportRatePace",
    "SimulatedClock",
    "SimulatedMesh",
    "Site",
    "describe_site",
    "generate_site",
    "parse_site",
]
