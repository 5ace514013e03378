"""Emulated gateways, each with a simulated mesh of devices, and fleets of such gateways.

`simulation` models sites, radio, mesh and devices without messages and without I/O; time is an argument.
`gateway` is one gateway without a connection: it consumes messages and time, and produces messages and I/O
actions. `runtime` connects gateways to an MQTT broker.
"""

from meshfleet.emulator.gateway import GatewayEmulator
from meshfleet.emulator.runtime.fleet import EmulatedFleet
from meshfleet.emulator.runtime.simulation_pace import RealTimePace, ReportRatePace
from meshfleet.emulator.settings import EmulatorSettings, Faults, ReportMode
from meshfleet.emulator.simulation.clock import SimulatedClock
from meshfleet.emulator.simulation.mesh import SimulatedMesh
from meshfleet.emulator.simulation.position_sites import SiteKind, add_walkers, generate_position_site
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
    "SiteKind",
    "add_walkers",
    "describe_site",
    "generate_position_site",
    "generate_site",
    "parse_site",
]
