"""Sites as JSON: described for people and programs, and read back from what they make of it.

A site file has the shape that `describe` gives, with more fields for those who want to say more.
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
from meshfleet.errors.protocol import WireError
from meshfleet.protocol.codes import AccessType
from meshfleet.protocol.ids import EVERY_GATEWAY, Mac, parse_mac

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from meshfleet.emulator.simulation.mesh import SimulatedMesh


# Objects of a JSON file that people write: read field by field, so that all mistakes are told at once.

FieldProblems = list[tuple[str, str]]
"""Where they are, and what they are."""


class FieldSpec(NamedTuple):
    """How a field is read; a `ValueError` or `WireError` says why it cannot be."""

    read: Callable[[Any], Any]
    required: bool = False


def decode_json(data: bytes, source: str) -> Any:
    """Read JSON, or raise a `MalformedSite`."""
    try:
        return msgspec.json.decode(str(data, "utf-8-sig"))  # editors on Windows like to sign their files
    except UnicodeDecodeError:
        reason = "is not UTF-8"
    except msgspec.DecodeError as exc:
        reason = f"cannot be read as JSON: {exc}"
    except RecursionError:
        reason = "is nested too deeply"
    raise MalformedSite(source, [("file", reason)])


def read_fields(
    given: Any, fields: Mapping[str, FieldSpec], where: str, mistakes: FieldProblems
) -> dict[str, Any]:
    """Read the fields of an object as far as they can be read; nothing may be there besides."""
    if not isinstance(given, dict):
        mistakes.append((where or "file", f"{quote_input(given)} is not an object"))
        return {}
    front = f"{where}." if where else ""
    found = {}
    for name, field in fields.items():
        if name not in given:
            if field.required:
                mistakes.append((front + name, "is missing"))
            continue
        try:
            found[name] = field.read(given[name])
        except (WireError, ValueError) as exc:
            mistakes.append((front + name, exc.reason if isinstance(exc, WireError) else str(exc)))
    mistakes += ((front + quote_name(name), "is not a field here") for name in given if name not in fields)
    return found


def read_text(given: Any) -> str:
    """Any text."""
    if not isinstance(given, str):
        raise ValueError(f"{quote_input(given)} is not a text")  # noqa: TRY004 # a mistake of the file, not of the code
    return given


def array_reader(most: int) -> Callable[[Any], list[Any]]:
    """An array that is not too long."""

    def read_array(given: Any) -> list[Any]:
        if not isinstance(given, list):
            raise ValueError(f"{quote_input(given)} is not an array")  # noqa: TRY004 # as above
        if len(given) > most:
            raise ValueError(f"has {len(given)} entries; {most} are allowed")
        return given

    return read_array


def choice_reader(meanings: Mapping[str, Any]) -> Callable[[Any], Any]:
    """One of some words, as what it means."""

    def read_word(given: Any) -> Any:
        if read_text(given) not in meanings:
            raise ValueError(f"{quote_input(given)} is not one of {', '.join(meanings)}")
        return meanings[given]

    return read_word


def integer_reader(lowest: int, highest: int) -> Callable[[Any], int]:
    """A whole number in its limits."""

    def read_whole(given: Any) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or not lowest <= given <= highest:
            raise ValueError(f"{quote_input(given)} is not a whole number from {lowest} to {highest}")
        return given

    return read_whole


def number_reader(lowest: int, highest: int) -> Callable[[Any], float]:
    """A number in its limits."""

    def read_number(given: Any) -> float:
        if isinstance(given, bool) or not isinstance(given, int | float) or not lowest <= given <= highest:
            raise ValueError(f"{quote_input(given)} is not a number from {lowest} to {highest}")
        return float(given)

    return read_number


def hex_reader(length: int) -> Callable[[Any], bytes]:
    """So many bytes in hex. They are not shown: they may be a secret."""

    def read_octets(given: Any) -> bytes:
        try:
            found = bytes.fromhex(given)
        except (TypeError, ValueError):
            found = b""
        if len(found) != length:
            raise ValueError(f"is not the hex of {length} bytes")
        return found

    return read_octets


def describe_site(site: Site, mesh: SimulatedMesh) -> dict[str, Any]:
    """A site as JSON, with the tree as it is at first."""
    described = {"gateway": site.gateway, "devices": [_describe_device(each, mesh) for each in site.devices]}
    return described | {"walls": site.walls._asdict()} if site.devices and any(site.walls) else described


def _describe_device(fixture: SiteDevice, mesh: SimulatedMesh) -> dict[str, Any]:
    product, place = fixture.product, fixture.position
    given: dict[str, Any] = {"mac": fixture.mac, "model": product.model, "name": product.name}
    given |= {"floor": place.floor, "x": place.x, "y": place.y, "parent": _find_parent(fixture, mesh)}
    if fixture.access is not None:
        given["access"] = fixture.access.value
    if fixture.access is AccessType.UNPROVISIONED:
        given["publicKey"] = derive_public_key(fixture.mac).hex()
    return given


def _find_parent(fixture: SiteDevice, mesh: SimulatedMesh) -> Mac | None:
    """Whom a device hangs on, or through whom it is reached."""
    node = mesh.nodes[fixture.mac]
    parent = node.parent
    if not node.wants_link:
        parent = mesh.find_relay_by_mac(node, fixture.parent, 0.0) if fixture.parent else None
        parent = parent or mesh.find_relay(node, 0.0)
    return parent.mac if parent else None


_MODES: Final = {
    mode.name.lower(): mode for mode in (DeviceMode.CONNECTED, DeviceMode.UNCONNECTED, DeviceMode.STORAGE)
}
_MAX_METERS: Final = 10_000
_FLOOR_LIMITS: Final = (-20, 200)


def parse_site(data: bytes, *, source: str, gateway: Mac, seed: int) -> Site:
    """Read a site file. All mistakes are told at once, in one `MalformedSite`."""
    mistakes: FieldProblems = []
    found = read_fields(decode_json(data, source), SITE_FIELDS, "", mistakes)
    walls = read_fields(found.get("walls", {}), WALL_FIELDS, "walls", mistakes)
    devices = [
        _read_device(each, f"devices[{i}]", mistakes) for i, each in enumerate(found.get("devices", ()))
    ]
    mistakes += _find_conflicts(devices, gateway)
    if found.get("gateway", gateway) != gateway:
        mistakes.append(("gateway", f"is {found['gateway']}; the one that runs is {gateway}"))
    if mistakes:
        raise MalformedSite(source, mistakes)
    return Site(
        gateway=gateway,
        seed=seed,
        devices=tuple(map(_build_device, devices)),
        walls=Walls(**walls),
        network_key=found.get("key", DEFAULT_NETWORK_KEY),
    )


def _read_device(given: Any, where: str, mistakes: FieldProblems) -> dict[str, Any]:
    """Read a device, and look at those of its fields that depend on each other."""
    found = read_fields(given, DEVICE_FIELDS, where, mistakes)
    products = found.get("model", ())
    if "name" in found and products:
        products = [each for each in products if each.name == found["name"]]
        if not products:
            mistakes.append(
                (f"{where}.name", f"{quote_input(found['name'])} is no product with this model number")
            )
    if len(products) > 1:
        codes = ", ".join(f"{each.model}-{each.variant:02d}" for each in products)
        mistakes.append((f"{where}.model", f"serves several products: say which with a name, or as {codes}"))
    elif products:
        found["product"] = products[0]
        if found.get("mode", products[0].default_mode) not in products[0].modes:
            mistakes.append((f"{where}.mode", f"{products[0].name} does not have it"))
    if "publicKey" in found and "mac" in found and found["publicKey"] != derive_public_key(found["mac"]):
        mistakes.append((f"{where}.publicKey", "is not the one of this MAC; it can be left out"))
    return found


def _find_conflicts(devices: list[dict[str, Any]], gateway: Mac) -> Iterator[tuple[str, str]]:
    """What is wrong with devices beside each other."""
    parents = {gateway: NodeRole.GATEWAY}
    seen: dict[Mac, str] = {gateway: "the gateway's", EVERY_GATEWAY: "kept for all gateways"}
    for i, device in enumerate(devices):
        mac = device.get("mac", "")
        if mac in seen:
            yield f"devices[{i}].mac", f"{mac} is {seen[mac]}"
        elif mac:
            seen[mac] = f"the MAC of devices[{i}]"
            parents[mac] = device["product"].role if "product" in device else NodeRole.EXTENDER
    for i, device in enumerate(devices):
        parent = device.get("parent")
        if parent is not None and parents.get(parent, NodeRole.LEAF) is NodeRole.LEAF:
            reason = "is no extender" if parent in parents else "is not there"
            yield f"devices[{i}].parent", f"{parent} {reason}"
        elif parent is not None and parent == device.get("mac"):
            yield f"devices[{i}].parent", "is the device itself"


def _build_device(found: dict[str, Any]) -> SiteDevice:
    product: ProductProfile = found["product"]
    return SiteDevice(
        mac=found["mac"],
        product=product,
        position=SitePosition(found.get("floor", 0), found["x"], found["y"]),
        mode=found.get("mode", product.default_mode),
        access=found.get("access"),
        battery=found.get("battery", 90 if product.has_battery else 100),
        parent=found.get("parent"),
    )


def _read_mac(given: Any) -> Mac:
    return parse_mac(read_text(given))


def _read_products(given: Any) -> list[ProductProfile]:
    """The products that a model number may mean."""
    code = read_text(given).upper()
    found = [each for each in PRODUCTS if each.model == code or each is PRODUCTS_BY_CODE.get(code)]
    if not found:
        raise ValueError(f"{quote_input(given)} is not one of {', '.join(_CODES)}")
    return found


def _read_walls(given: Any) -> tuple[float, ...]:
    return tuple(sorted(map(_METERS, array_reader(_MAX_METERS)(given))))


_CODES: Final = tuple(code for code, product in PRODUCTS_BY_CODE.items() if product in PRODUCTS)
_METERS: Final = number_reader(-_MAX_METERS, _MAX_METERS)

SITE_FIELDS: Final = {
    "gateway": FieldSpec(_read_mac),
    "devices": FieldSpec(array_reader(MAX_DEVICES), required=True),
    "walls": FieldSpec(lambda given: given),
    "key": FieldSpec(hex_reader(len(DEFAULT_NETWORK_KEY))),
}
WALL_FIELDS: Final = {"x": FieldSpec(_read_walls), "y": FieldSpec(_read_walls)}
DEVICE_FIELDS: Final = {
    "mac": FieldSpec(_read_mac, required=True),
    "model": FieldSpec(_read_products, required=True),
    "name": FieldSpec(read_text),
    "floor": FieldSpec(integer_reader(*_FLOOR_LIMITS)),
    "x": FieldSpec(_METERS, required=True),
    "y": FieldSpec(_METERS, required=True),
    "parent": FieldSpec(lambda given: None if given is None else _read_mac(given)),
    "mode": FieldSpec(choice_reader(_MODES)),
    "access": FieldSpec(choice_reader({access.value: access for access in AccessType})),
    "publicKey": FieldSpec(hex_reader(65)),
    "battery": FieldSpec(integer_reader(0, 100)),
}
