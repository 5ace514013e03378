"""Where everything stands: a site, made up from a seed or read from a file.

The gateway stands at 0, 0 on floor 0; x and y are metres. A site file has the shape that `describe` gives,
with more fields for those who want to say more.
"""

from __future__ import annotations

from bisect import bisect_left
from hashlib import sha512
from itertools import count
from math import ceil, cos, hypot, pi, sin, sqrt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

from meshfleet.errors import MalformedSite, shown
from meshfleet.gateway.world import entries, radio
from meshfleet.gateway.world.entries import Field
from meshfleet.gateway.world.noise import key_of, noise
from meshfleet.gateway.world.products import BY_CODE, PRODUCTS, Mode, Product, Role
from meshfleet.wire.codes import AccessType
from meshfleet.wire.ids import EVERY_GATEWAY, Mac, parse_mac

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from meshfleet.gateway.world.entries import Mistakes
    from meshfleet.gateway.world.mesh import Mesh

MAX_DEVICES: Final = 10_000
KEY: Final = bytes.fromhex("00112233445566778899aabbccddeeff")


class Place(NamedTuple):
    """Where something stands."""

    floor: int
    x: float
    y: float


class Walls(NamedTuple):
    """Walls run along whole floors, at these x and at these y; both ascend."""

    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()

    def between(self, a: Place, b: Place) -> int:
        """How many stand between two places."""
        return abs(bisect_left(self.x, a.x) - bisect_left(self.x, b.x)) + abs(
            bisect_left(self.y, a.y) - bisect_left(self.y, b.y)
        )


class Fixture(Struct, frozen=True, kw_only=True, gc=False):
    """One device as it is put up."""

    mac: Mac
    product: Product
    place: Place
    mode: Mode
    access: AccessType | None = None
    """None: it is provisioned."""
    battery: int
    """Percent on day one."""
    parent: Mac | None = None
    """The parent that it should have if it can."""


class Site(Struct, frozen=True, kw_only=True):
    """A gateway and all that stands around it."""

    gateway: Mac
    seed: int
    devices: tuple[Fixture, ...]
    walls: Walls = Walls()
    key: bytes = KEY
    """The network key."""


def public_key(mac: Mac) -> bytes:
    """The key with which an unprovisioned device introduces itself."""
    return b"\x04" + sha512(mac.encode()).digest()


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


# --- Made-up sites ---

_TEN: Final = "0043 0018 0005 000F 0050 0018 0011-01 0040 0011-04 0060"
_TEN_MORE: Final = "0043 0018 0005 000F 0050 0063 0011-01 0040 0011-04 0060"
_ORDER: Final = tuple(BY_CODE[code] for code in f"{_TEN} {_TEN_MORE}".split())

_OUTSIDERS: Final = {
    8: (BY_CODE["000F"], AccessType.LEGACY),
    9: (BY_CODE["0063"], AccessType.UNPROVISIONED),
}
"""In every site with room for them: one device of each kind that is not in the secure network."""

_DEVICES_ON_A_FLOOR: Final = 60
_FLOORS: Final = (0, 1, -1, 2, -2, 3, -3, 4, -4)
_TRIES: Final = 8
_DEEPEST: Final = 7
"""Extenders are put up so that leaves still have room below them in the tree."""
_SAFE: Final = -84.0
"""dBm. Stronger links between extenders do not break when they fade."""
_ROOMY: Final = 9.0
_RISERS: Final = 0.15
"""So many extenders of other floors stand above or below one of the floor before."""


class _Post(NamedTuple):
    """A place where the gateway or an extender stands, and how many hops away it is at best."""

    place: Place
    hops: int


def generate(gateway: Mac, *, devices: int, seed: int) -> Site:
    """Make up a site; the same gateway, number and seed give the same one."""
    if not 0 <= devices <= MAX_DEVICES:
        raise ValueError(f"a gateway has up to {MAX_DEVICES} devices, not {devices}")
    key = key_of("site", seed, gateway)
    chance = (noise(key, n) for n in count()).__next__
    walls = Walls(*(_walls(devices, chance) for _ in "xy"))
    products = [_product(index, devices) for index in range(devices)]
    floors = _FLOORS[: ceil((devices / _DEVICES_ON_A_FLOOR) ** 0.6)]  # large houses are wide as well as high
    stands = [floors[index * len(floors) // devices] for index in range(devices)]
    places = _places(products, stands, walls=walls, chance=chance)
    first = _first_mac(gateway, seed)
    return Site(
        gateway=gateway,
        seed=seed,
        walls=walls,
        devices=tuple(
            Fixture(
                # Even: one more is its address in DFU mode, which must be nobody else's.
                mac=Mac(f"{first + 2 * index:012x}"),
                product=product,
                place=place,
                mode=product.usual,
                access=_OUTSIDERS[index][1] if index in _OUTSIDERS and devices > max(_OUTSIDERS) else None,
                battery=55 + int(46 * chance()) if product.battery else 100,
            )
            for index, (product, place) in enumerate(zip(products, places, strict=True))
        ),
    )


def _product(index: int, devices: int) -> Product:
    if index in _OUTSIDERS and devices > max(_OUTSIDERS):
        return _OUTSIDERS[index][0]
    return _ORDER[index % len(_ORDER)]


def _first_mac(gateway: Mac, seed: int) -> int:
    """Gateways that count up share no MAC of a device, and have none themselves that a device has."""
    top = 0xD if gateway.startswith("c") else 0xC
    return top << 44 | ((int(gateway, 16) ^ key_of(seed)) & 0xFFFFFFF) << 16 | 2


def _walls(devices: int, chance: Callable[[], float]) -> tuple[float, ...]:
    """Rooms are about 8 m wide; the gateway stands in the middle of one."""
    rooms = 3 + int(sqrt(devices / 4))
    return tuple(round(8 * room + 4 + 2 * chance() - 1, 2) for room in range(-rooms, rooms))


def _places(
    products: list[Product], floors: list[int], *, walls: Walls, chance: Callable[[], float]
) -> list[Place]:
    """Extenders first, since the leaves stand around them."""
    posts = {floor: list[_Post]() for floor in floors} | {0: [_Post(Place(0, 0.0, 0.0), 0)]}
    places: dict[int, Place] = {}
    for index, (product, floor) in enumerate(zip(products, floors, strict=True)):
        if product.role is Role.EXTENDER:
            post = _extend(posts, floor, walls=walls, chance=chance)
            posts[floor].append(post)
            places[index] = post.place
    for index, floor in enumerate(floors):
        if index not in places:
            near = posts[floor] or posts[0]
            post = near[int(len(near) * chance())]
            places[index] = _away(post.place, floor, 1.0 + 8.0 * chance(), chance=chance)
    return [places[index] for index in range(len(floors))]


def _extend(
    posts: Mapping[int, list[_Post]], floor: int, *, walls: Walls, chance: Callable[[], float]
) -> _Post:
    """Where the next extender goes: about 12 m from another one, and not near a third."""
    here = posts[floor]
    if not here or (floor and chance() < _RISERS):
        return _rise(posts, floor, chance=chance)
    best, widest = None, -1.0
    for _ in range(_TRIES):
        anchor = here[int(len(here) * chance())]
        place = _away(anchor.place, floor, 9.5 + 3.0 * chance(), chance=chance)
        if anchor.hops >= _DEEPEST or radio.mean(anchor.place, place, walls) < _SAFE:
            continue
        room = min(hypot(place.x - other.place.x, place.y - other.place.y) for other in here)
        if room > widest:
            best, widest = _Post(place, anchor.hops + 1), room
        if room > _ROOMY:
            break
    if best is None:
        anchor = here[int(len(here) * chance() / 2)]  # the earlier ones have fewer hops
        best = _Post(_away(anchor.place, floor, 6.0, chance=chance), anchor.hops + 1)
    return best


def _rise(posts: Mapping[int, list[_Post]], floor: int, *, chance: Callable[[], float]) -> _Post:
    """Put an extender above or below one of the next floor towards the gateway."""
    nearer = posts[floor - 1 if floor > 0 else floor + 1]
    anchor = nearer[int(len(nearer) * chance() / 2)]
    return _Post(_away(anchor.place, floor, chance(), chance=chance), anchor.hops + 1)


def _away(place: Place, floor: int, distance: float, *, chance: Callable[[], float]) -> Place:
    angle = 2.0 * pi * chance()
    return Place(floor, round(place.x + distance * cos(angle), 2), round(place.y + distance * sin(angle), 2))


# --- Site files ---

_MODES: Final = {mode.name.lower(): mode for mode in (Mode.CONNECTED, Mode.UNCONNECTED, Mode.STORAGE)}
_FURTHEST: Final = 10_000
_FLOOR_LIMITS: Final = (-20, 200)


def parse(data: bytes, *, source: str, gateway: Mac, seed: int) -> Site:
    """Read a site file. All mistakes are told at once, in one `MalformedSite`."""
    mistakes: Mistakes = []
    found = entries.read(entries.decode(data, source), _SITE, "", mistakes)
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
    found = entries.read(given, _DEVICE, where, mistakes)
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

_SITE: Final = {
    "gateway": Field(_mac),
    "devices": Field(entries.array(MAX_DEVICES), needed=True),
    "walls": Field(lambda given: given),
    "key": Field(entries.octets(len(KEY))),
}
_WALLS: Final = {"x": Field(_line), "y": Field(_line)}
_DEVICE: Final = {
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
