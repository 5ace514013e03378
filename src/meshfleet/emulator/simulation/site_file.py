"""Site files: JSON descriptions of sites, written by the emulator and by users.

A site file has the format that `describe_site` returns, with additional optional fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meshfleet.emulator.simulation.products import (
    PRODUCTS,
    PRODUCTS_BY_CODE,
    DeviceMode,
    NodeRole,
    ProductProfile,
)
from meshfleet.emulator.simulation.site import (
    DEFAULT_NETWORK_KEY,
    MAX_DEVICES,
    Site,
    SiteDevice,
    SitePosition,
    Walls,
    derive_public_key,
)
from meshfleet.errors import quote_input, quote_name
from meshfleet.errors.emulator import MalformedSite
from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol.codes import AccessType
from meshfleet.protocol.ids import EVERY_GATEWAY, Mac, parse_mac

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from meshfleet.emulator.simulation.mesh import SimulatedMesh


# Reading of JSON objects field by field, so that all problems of a file are reported at once.

FieldProblems = list[tuple[str, str]]
"""Problems of a site file: pairs of field path and reason."""


class FieldSpec(NamedTuple):
    """Rule for one field of a site file.

    `read` returns the parsed value, or raises `ValueError` or `MalformedInput`.
    """

    read: Callable[[Any], Any]
    required: bool = False


def decode_json(data: bytes, source: str) -> Any:
    """Decode the JSON of a site file. Raise `MalformedSite`, which names `source`, if it is not JSON."""
    try:
        return msgspec.json.decode(str(data, "utf-8-sig"))  # editors on Windows write a byte order mark
    except UnicodeDecodeError:
        reason = "is not UTF-8"
    except msgspec.DecodeError as exc:
        reason = f"cannot be read as JSON: {exc}"
    except RecursionError:
        reason = "is nested too deeply"
    raise MalformedSite(source, [("file", reason)])


def read_fields(
    value: Any, fields: Mapping[str, FieldSpec], path: str, problems: FieldProblems
) -> dict[str, Any]:
    """Return the valid fields of a JSON object; append invalid, missing and unknown fields to `problems`."""
    if not isinstance(value, dict):
        problems.append((path or "file", f"{quote_input(value)} is not an object"))
        return {}
    path_prefix = f"{path}." if path else ""
    values = {}
    for name, field in fields.items():
        if name not in value:
            if field.required:
                problems.append((path_prefix + name, "is missing"))
            continue
        try:
            values[name] = field.read(value[name])
        except (MalformedInput, ValueError) as exc:
            problems.append((path_prefix + name, exc.reason if isinstance(exc, MalformedInput) else str(exc)))
    problems += (
        (path_prefix + quote_name(name), "is not a field here") for name in value if name not in fields
    )
    return values


def read_text(value: Any) -> str:
    """Return a JSON value that is a string. Raise `ValueError` if it is not a string."""
    if not isinstance(value, str):
        raise ValueError(f"{quote_input(value)} is not a string")  # noqa: TRY004 # bad file content
    return value


def build_array_reader(max_length: int) -> Callable[[Any], list[Any]]:
    """Build a function that checks that a JSON value is an array of at most `max_length` entries."""

    def read_array(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError(f"{quote_input(value)} is not an array")  # noqa: TRY004 # bad file content
        if len(value) > max_length:
            raise ValueError(f"has {len(value)} entries; {max_length} are allowed")
        return value

    return read_array


def build_choice_reader(choices: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Build a function that checks that a JSON value is a key of `choices`, and returns the key's entry."""

    def read_choice(value: Any) -> Any:
        if read_text(value) not in choices:
            raise ValueError(f"{quote_input(value)} is not one of {', '.join(choices)}")
        return choices[value]

    return read_choice


def build_integer_reader(lowest: int, highest: int) -> Callable[[Any], int]:
    """Build a function that checks that a JSON value is an integer from `lowest` to `highest`."""

    def read_integer(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise ValueError(f"{quote_input(value)} is not a whole number from {lowest} to {highest}")
        return value

    return read_integer


def build_number_reader(lowest: int, highest: int) -> Callable[[Any], float]:
    """Build a function that checks that a JSON value is a number from `lowest` to `highest`."""

    def read_number(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
            raise ValueError(f"{quote_input(value)} is not a number from {lowest} to {highest}")
        return float(value)

    return read_number


def build_hex_reader(length: int) -> Callable[[Any], bytes]:
    """Build a function that decodes `length` bytes in hex. Its errors do not quote the value, maybe a key."""

    def read_hex(value: Any) -> bytes:
        try:
            octets = bytes.fromhex(value)
        except (TypeError, ValueError):
            octets = b""
        if len(octets) != length:
            raise ValueError(f"is not the hex of {length} bytes")
        return octets

    return read_hex


def describe_site(site: Site, mesh: SimulatedMesh) -> dict[str, Any]:
    """Convert a site to the JSON object of a site file. `mesh` gives the parent of each device."""
    description = {
        "gateway": site.gateway,
        "devices": [_describe_device(each, mesh) for each in site.devices],
    }
    return description | {"walls": site.walls._asdict()} if site.devices and any(site.walls) else description


def _describe_device(site_device: SiteDevice, mesh: SimulatedMesh) -> dict[str, Any]:
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
_MAX_METERS: Final = 10_000
_FLOOR_LIMITS: Final = (-20, 200)


def parse_site(data: bytes, *, source: str, gateway: Mac, seed: int) -> Site:
    """Parse a site file. Raise one `MalformedSite` with all problems of the file."""
    problems: FieldProblems = []
    fields = read_fields(decode_json(data, source), SITE_FIELDS, "", problems)
    walls = read_fields(fields.get("walls", {}), WALL_FIELDS, "walls", problems)
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
        walls=Walls(**walls),
        network_key=fields.get("key", DEFAULT_NETWORK_KEY),
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
    if "publicKey" in fields and "mac" in fields and fields["publicKey"] != derive_public_key(fields["mac"]):
        problems.append((f"{path}.publicKey", "is not the public key of this MAC; it can be omitted"))
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
    return SiteDevice(
        mac=fields["mac"],
        product=product,
        position=SitePosition(fields.get("floor", 0), fields["x"], fields["y"]),
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
    return tuple(sorted(map(_METERS, build_array_reader(_MAX_METERS)(value))))


_CODES: Final = tuple(code for code, product in PRODUCTS_BY_CODE.items() if product in PRODUCTS)
_METERS: Final = build_number_reader(-_MAX_METERS, _MAX_METERS)

SITE_FIELDS: Final = {
    "gateway": FieldSpec(_read_mac),
    "devices": FieldSpec(build_array_reader(MAX_DEVICES), required=True),
    "walls": FieldSpec(lambda value: value),
    "key": FieldSpec(build_hex_reader(len(DEFAULT_NETWORK_KEY))),
}
WALL_FIELDS: Final = {"x": FieldSpec(_read_walls), "y": FieldSpec(_read_walls)}
DEVICE_FIELDS: Final = {
    "mac": FieldSpec(_read_mac, required=True),
    "model": FieldSpec(_read_products, required=True),
    "name": FieldSpec(read_text),
    "floor": FieldSpec(build_integer_reader(*_FLOOR_LIMITS)),
    "x": FieldSpec(_METERS, required=True),
    "y": FieldSpec(_METERS, required=True),
    "parent": FieldSpec(lambda value: None if value is None else _read_mac(value)),
    "mode": FieldSpec(build_choice_reader(_MODES)),
    "access": FieldSpec(build_choice_reader({access.value: access for access in AccessType})),
    "publicKey": FieldSpec(build_hex_reader(65)),
    "battery": FieldSpec(build_integer_reader(0, 100)),
}
