"""Sites as JSON: described for people and programs, and read back from what they make of it.

A site file has the shape that `describe` gives, with more fields for those who want to say more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.errors import MalformedSite, shown
from meshfleet.gateway.world import entries
from meshfleet.gateway.world.entries import Field
from meshfleet.gateway.world.places import Place, Walls
from meshfleet.gateway.world.products import BY_CODE, PRODUCTS, Mode, Product, Role
from meshfleet.gateway.world.site import KEY, MAX_DEVICES, Fixture, Site, public_key
from meshfleet.wire.codes import AccessType
from meshfleet.wire.ids import EVERY_GATEWAY, Mac, parse_mac

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.gateway.world.entries import Mistakes
    from meshfleet.gateway.world.mesh import Mesh


def describe(site: Site, mesh: Mesh) -> dict[str, Any]:
    """A site as JSON, with the tree as it is at first."""
    described = {"gateway": site.gateway, "devices": [_described(each, mesh) for each in site.devices]}
    return described | {"walls": site.walls._asdict()} if site.devices and any(site.walls) else described


def _described(fixture: Fixture, mesh: Mesh) -> dict[str, Any]:
    product, place = fixture.product, fixture.place
    given: dict[str, Any] = {"mac": fixture.mac, "model": product.model, "name": product.name}
    given |= {"floor": place.floor, "x": place.x, "y": place.y, "parent": _parent(fixture, mesh)}
    if fixture.access is not None:
        given["access"] = fixture.access.value
    if fixture.access is AccessType.UNPROVISIONED:
        given["publicKey"] = public_key(fixture.mac).hex()
    return given


def _parent(fixture: Fixture, mesh: Mesh) -> Mac | None:
    """Whom a device hangs on, or through whom it is reached."""
    node = mesh.nodes[fixture.mac]
    parent = node.parent
    if not node.joined:
        parent = mesh.reacher_named(node, fixture.parent, 0.0) if fixture.parent else None
        parent = parent or mesh.reacher(node, 0.0)
    return parent.mac if parent else None


_MODES: Final = {mode.name.lower(): mode for mode in (Mode.CONNECTED, Mode.UNCONNECTED, Mode.STORAGE)}
_FURTHEST: Final = 10_000
_FLOOR_LIMITS: Final = (-20, 200)


def parse(data: bytes, *, source: str, gateway: Mac, seed: int) -> Site:
    """Read a site file. All mistakes are told at once, in one `MalformedSite`."""
    mistakes: Mistakes = []
    found = entries.read(entries.decode(data, source), SITE_FIELDS, "", mistakes)
    walls = entries.read(found.get("walls", {}), _WALLS, "walls", mistakes)
    devices = [_device(each, f"devices[{i}]", mistakes) for i, each in enumerate(found.get("devices", ()))]
    mistakes += _clashes(devices, gateway)
    if found.get("gateway", gateway) != gateway:
        mistakes.append(("gateway", f"is {found['gateway']}; the one that runs is {gateway}"))
    if mistakes:
        raise MalformedSite(source, mistakes)
    return Site(
        gateway=gateway,
        seed=seed,
        devices=tuple(map(_fixture, devices)),
        walls=Walls(**walls),
        key=found.get("key", KEY),
    )


def _device(given: Any, where: str, mistakes: Mistakes) -> dict[str, Any]:
    """Read a device, and look at those of its fields that depend on each other."""
    found = entries.read(given, DEVICE_FIELDS, where, mistakes)
    products = found.get("model", ())
    if "name" in found and products:
        products = [each for each in products if each.name == found["name"]]
        if not products:
            mistakes.append((f"{where}.name", f"{shown(found['name'])} is no product with this model number"))
    if len(products) > 1:
        codes = ", ".join(f"{each.model}-{each.variant:02d}" for each in products)
        mistakes.append((f"{where}.model", f"serves several products: say which with a name, or as {codes}"))
    elif products:
        found["product"] = products[0]
        if found.get("mode", products[0].usual) not in products[0].modes:
            mistakes.append((f"{where}.mode", f"{products[0].name} does not have it"))
    if "publicKey" in found and "mac" in found and found["publicKey"] != public_key(found["mac"]):
        mistakes.append((f"{where}.publicKey", "is not the one of this MAC; it can be left out"))
    return found


def _clashes(devices: list[dict[str, Any]], gateway: Mac) -> Iterator[tuple[str, str]]:
    """What is wrong with devices beside each other."""
    parents = {gateway: Role.GATEWAY}
    seen: dict[Mac, str] = {gateway: "the gateway's", EVERY_GATEWAY: "kept for all gateways"}
    for i, device in enumerate(devices):
        mac = device.get("mac", "")
        if mac in seen:
            yield f"devices[{i}].mac", f"{mac} is {seen[mac]}"
        elif mac:
            seen[mac] = f"the MAC of devices[{i}]"
            parents[mac] = device["product"].role if "product" in device else Role.EXTENDER
    for i, device in enumerate(devices):
        parent = device.get("parent")
        if parent is not None and parents.get(parent, Role.LEAF) is Role.LEAF:
            reason = "is no extender" if parent in parents else "is not there"
            yield f"devices[{i}].parent", f"{parent} {reason}"
        elif parent is not None and parent == device.get("mac"):
            yield f"devices[{i}].parent", "is the device itself"


def _fixture(found: dict[str, Any]) -> Fixture:
    product: Product = found["product"]
    return Fixture(
        mac=found["mac"],
        product=product,
        place=Place(found.get("floor", 0), found["x"], found["y"]),
        mode=found.get("mode", product.usual),
        access=found.get("access"),
        battery=found.get("battery", 90 if product.battery else 100),
        parent=found.get("parent"),
    )


def _mac(given: Any) -> Mac:
    return parse_mac(entries.text(given))


def _models(given: Any) -> list[Product]:
    """The products that a model number may mean."""
    code = entries.text(given).upper()
    found = [each for each in PRODUCTS if each.model == code or each is BY_CODE.get(code)]
    if not found:
        raise ValueError(f"{shown(given)} is not one of {', '.join(_CODES)}")
    return found


def _line(given: Any) -> tuple[float, ...]:
    return tuple(sorted(map(_METRES, entries.array(_FURTHEST)(given))))


_CODES: Final = tuple(code for code, product in BY_CODE.items() if product in PRODUCTS)
_METRES: Final = entries.number(-_FURTHEST, _FURTHEST)

SITE_FIELDS: Final = {
    "gateway": Field(_mac),
    "devices": Field(entries.array(MAX_DEVICES), needed=True),
    "walls": Field(lambda given: given),
    "key": Field(entries.octets(len(KEY))),
}
_WALLS: Final = {"x": Field(_line), "y": Field(_line)}
DEVICE_FIELDS: Final = {
    "mac": Field(_mac, needed=True),
    "model": Field(_models, needed=True),
    "name": Field(entries.text),
    "floor": Field(entries.whole(*_FLOOR_LIMITS)),
    "x": Field(_METRES, needed=True),
    "y": Field(_METRES, needed=True),
    "parent": Field(lambda given: None if given is None else _mac(given)),
    "mode": Field(entries.word(_MODES)),
    "access": Field(entries.word({access.value: access for access in AccessType})),
    "publicKey": Field(entries.octets(65)),
    "battery": Field(entries.whole(0, 100)),
}
