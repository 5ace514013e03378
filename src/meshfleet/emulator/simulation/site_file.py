"""Site files: JSON descriptions of sites, written by the emulator and by users.

A site file has the format that `describe_site` returns, with additional optional fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.emulator.simulation.json_fields import (
    FieldProblems,
    FieldSpec,
    build_array_reader,
    build_choice_reader,
    build_hex_reader,
    build_integer_reader,
    decode_json,
    read_fields,
    read_objects,
    read_text,
)
from meshfleet.emulator.simulation.position_fields import (
    AREA_FIELDS,
    MAX_METERS,
    SEGMENT_FIELDS,
    build_areas,
    build_segments,
    describe_area,
    describe_movement,
    read_areas,
    read_floor,
    read_gain,
    read_interval,
    read_meters,
    read_movement,
    read_segments,
)
from meshfleet.emulator.simulation.products import (
    PRODUCTS,
    PRODUCTS_BY_CODE,
    DeviceMode,
    NodeRole,
    ProductProfile,
)
from meshfleet.emulator.simulation.site import (
    DEFAULT_INTERVAL,
    DEFAULT_NETWORK_KEY,
    MAX_DEVICES,
    RECEIVER_LIMITS,
    Site,
    SiteDevice,
    SitePosition,
    Walk,
    Walls,
    derive_public_key,
)
from meshfleet.errors import quote_input
from meshfleet.errors.emulator import MalformedSite
from meshfleet.protocol.codes import AccessType
from meshfleet.protocol.ids import EVERY_GATEWAY, Mac, parse_mac

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.emulator.simulation.mesh import SimulatedMesh


def describe_site(site: Site, mesh: SimulatedMesh) -> dict[str, Any]:
    """Convert a site to the JSON object of a site file. `mesh` gives the parent of each device."""
    description: dict[str, Any] = {
        "gateway": site.gateway,
        "devices": [_describe_device(each, site, mesh) for each in site.devices],
    }
    if site.devices and any(site.walls):
        description["walls"] = _describe_walls(site.walls)
    if site.areas:
        description["floors"] = [describe_area(each) for each in site.areas]
    if site.receivers is not None:
        description["receivers"] = site.receivers
    if site.interval != DEFAULT_INTERVAL:
        description["interval"] = site.interval
    return description


def _describe_walls(walls: Walls) -> dict[str, Any]:
    """Convert walls to the JSON object of a site file."""
    description: dict[str, Any] = {"x": walls.x, "y": walls.y}
    if walls.segments:
        description["segments"] = [each._asdict() for each in walls.segments]
    return description


def _describe_device(site_device: SiteDevice, site: Site, mesh: SimulatedMesh) -> dict[str, Any]:
    """Convert a device to the JSON object of a site file."""
    product, position = site_device.product, site_device.position
    description: dict[str, Any] = {"mac": site_device.mac, "model": product.model, "name": product.name}
    description |= {
        "floor": position.floor,
        "x": position.x,
        "y": position.y,
        "parent": _find_parent(site_device, mesh),
    }
    if site_device.access is not None:
        description["access"] = site_device.access.value
    if site_device.access is AccessType.UNPROVISIONED:
        description["publicKey"] = derive_public_key(site_device.mac).hex()
    if gain := site.gains.get(site_device.mac):
        description["gain"] = gain
    if (power := site.powers.get(site_device.mac)) is not None:
        description["power"] = power
    if movement := site.movements.get(site_device.mac):
        description |= describe_movement(movement)
    return description


def _find_parent(site_device: SiteDevice, mesh: SimulatedMesh) -> Mac | None:
    """Return the MAC of the parent of a device; for an unconnected device, of the node that reaches it."""
    node = mesh.nodes[site_device.mac]
    parent = node.parent
    if not node.wants_link:
        parent = mesh.find_relay_by_mac(node, site_device.parent, 0.0) if site_device.parent else None
        parent = parent or mesh.find_relay(node, 0.0)
    return parent.mac if parent else None


_MODES: Final = {
    mode.name.lower(): mode for mode in (DeviceMode.CONNECTED, DeviceMode.UNCONNECTED, DeviceMode.STORAGE)
}


def parse_site(data: bytes, *, source: str, gateway: Mac, seed: int) -> Site:
    """Parse a site file. Raise one `MalformedSite` with all problems of the file."""
    problems: FieldProblems = []
    fields = read_fields(decode_json(data, source), SITE_FIELDS, "", problems)
    walls = read_fields(fields.get("walls", {}), WALL_FIELDS, "walls", problems)
    segments = read_objects(walls.pop("segments", ()), SEGMENT_FIELDS, "walls.segments", problems)
    areas = build_areas(read_objects(fields.get("floors", ()), AREA_FIELDS, "floors", problems), problems)
    devices = [
        _read_device(each, f"devices[{i}]", problems) for i, each in enumerate(fields.get("devices", ()))
    ]
    problems += _find_conflicts(devices, gateway)
    if fields.get("gateway", gateway) != gateway:
        problems.append(("gateway", f"is {fields['gateway']}, but the emulated gateway is {gateway}"))
    if problems:
        raise MalformedSite(source, problems)
    return Site(
        gateway=gateway,
        seed=seed,
        devices=tuple(map(_build_device, devices)),
        walls=Walls(**walls, segments=build_segments(segments)),
        network_key=fields.get("key", DEFAULT_NETWORK_KEY),
        receivers=fields.get("receivers"),
        gains={each["mac"]: each["gain"] for each in devices if each.get("gain")},
        powers={each["mac"]: each["power"] for each in devices if "power" in each},
        movements={each["mac"]: each["movement"] for each in devices if each["movement"]},
        interval=fields.get("interval", DEFAULT_INTERVAL),
        areas=areas,
    )


def _read_device(value: Any, path: str, problems: FieldProblems) -> dict[str, Any]:
    """Read a device of a site file, and check the fields that depend on each other."""
    fields = read_fields(value, DEVICE_FIELDS, path, problems)
    products = fields.get("model", ())
    if "name" in fields and products:
        products = [each for each in products if each.name == fields["name"]]
        if not products:
            problems.append(
                (f"{path}.name", f"{quote_input(fields['name'])} is not a product with this model number")
            )
    if len(products) > 1:
        codes = ", ".join(f"{each.model}-{each.variant:02d}" for each in products)
        problems.append((f"{path}.model", f"is shared by several products: add a name, or use {codes}"))
    elif products:
        fields["product"] = products[0]
        if fields.get("mode", products[0].default_mode) not in products[0].modes:
            problems.append((f"{path}.mode", f"{products[0].name} does not support it"))
        if "power" in fields and fields["power"] not in products[0].powers:
            problems.append((f"{path}.power", f"{products[0].name} does not support it"))
    if "publicKey" in fields and "mac" in fields and fields["publicKey"] != derive_public_key(fields["mac"]):
        problems.append((f"{path}.publicKey", "is not the public key of this MAC; it can be omitted"))
    fields["movement"] = read_movement(fields, path, problems)
    return fields


def _find_conflicts(devices: list[dict[str, Any]], gateway: Mac) -> Iterator[tuple[str, str]]:
    """Yield the problems between devices of a site file: duplicate MACs and invalid parents."""
    parents = {gateway: NodeRole.GATEWAY}
    used_macs: dict[Mac, str] = {gateway: "the gateway's", EVERY_GATEWAY: "reserved for all gateways"}
    for i, device in enumerate(devices):
        mac = device.get("mac", "")
        if mac in used_macs:
            yield f"devices[{i}].mac", f"{mac} is {used_macs[mac]}"
        elif mac:
            used_macs[mac] = f"the MAC of devices[{i}]"
            parents[mac] = device["product"].role if "product" in device else NodeRole.EXTENDER
    for i, device in enumerate(devices):
        parent = device.get("parent")
        if parent is not None and parents.get(parent, NodeRole.LEAF) is NodeRole.LEAF:
            problem = "is not an extender" if parent in parents else "is not in this file"
            yield f"devices[{i}].parent", f"{parent} {problem}"
        elif parent is not None and parent == device.get("mac"):
            yield f"devices[{i}].parent", "is the device itself"


def _build_device(fields: dict[str, Any]) -> SiteDevice:
    """Build a device from the fields of a site file, which have been checked."""
    product: ProductProfile = fields["product"]
    position, movement = SitePosition(fields.get("floor", 0), fields["x"], fields["y"]), fields["movement"]
    return SiteDevice(
        mac=fields["mac"],
        product=product,
        position=movement.path[0] if isinstance(movement, Walk) and movement.path else position,
        mode=fields.get("mode", product.default_mode),
        access=fields.get("access"),
        battery=fields.get("battery", 90 if product.has_battery else 100),
        parent=fields.get("parent"),
    )


def _read_mac(value: Any) -> Mac:
    return parse_mac(read_text(value))


def _read_products(value: Any) -> list[ProductProfile]:
    """Return the products that have the model number or product code `value`."""
    code = read_text(value).upper()
    matches = [each for each in PRODUCTS if each.model == code or each is PRODUCTS_BY_CODE.get(code)]
    if not matches:
        raise ValueError(f"{quote_input(value)} is not one of {', '.join(_CODES)}")
    return matches


def _read_walls(value: Any) -> tuple[float, ...]:
    return tuple(sorted(map(read_meters, build_array_reader(MAX_METERS)(value))))


_CODES: Final = tuple(code for code, product in PRODUCTS_BY_CODE.items() if product in PRODUCTS)

SITE_FIELDS: Final = {
    "gateway": FieldSpec(_read_mac),
    "devices": FieldSpec(build_array_reader(MAX_DEVICES), required=True),
    "walls": FieldSpec(lambda value: value),
    "key": FieldSpec(build_hex_reader(len(DEFAULT_NETWORK_KEY))),
    "floors": FieldSpec(read_areas),
    "receivers": FieldSpec(build_integer_reader(*RECEIVER_LIMITS)),
    "interval": FieldSpec(read_interval),
}
WALL_FIELDS: Final = {
    "x": FieldSpec(_read_walls),
    "y": FieldSpec(_read_walls),
    "segments": FieldSpec(read_segments),
}
DEVICE_FIELDS: Final = {
    "mac": FieldSpec(_read_mac, required=True),
    "model": FieldSpec(_read_products, required=True),
    "name": FieldSpec(read_text),
    "floor": FieldSpec(read_floor),
    "x": FieldSpec(read_meters, required=True),
    "y": FieldSpec(read_meters, required=True),
    "parent": FieldSpec(lambda value: None if value is None else _read_mac(value)),
    "mode": FieldSpec(build_choice_reader(_MODES)),
    "access": FieldSpec(build_choice_reader({access.value: access for access in AccessType})),
    "publicKey": FieldSpec(build_hex_reader(65)),
    "battery": FieldSpec(build_integer_reader(0, 100)),
    "gain": FieldSpec(read_gain),
    "power": FieldSpec(build_integer_reader(-40, 8)),
    "walk": FieldSpec(lambda value: value),
    "survey": FieldSpec(lambda value: value),
}
