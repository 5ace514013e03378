"""Large fleet in the registry: the same devices every time, inserted by the service's own functions.

A million devices are behind 10,000 gateways, which are devices too. Models are distributed as unevenly as in
real fleets, firmware belongs to a model, names are in several scripts, and every device has three labels: its
purpose, its building, and the team responsible for it.

python -m bench.api_fleet FOLDER [--size N] [--database postgresql://...]
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from msgspec import UNSET

from meshfleet.db import Database, open_database
from meshfleet.protocol.ids import Mac, ModelNumber, Version, mac_from_int
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Connection

    Value = TypeVar("Value")

SIZE: Final = 1_000_000
GATEWAY_EVERY: Final = 100
START: Final = 1_790_000_000_000
"""First observation of the first device, in milliseconds since 1970."""

PURPOSES: Final = [f"purpose/{number:02d}" for number in range(41)]
TEAMS: Final = [f"team {number:03d}" for number in range(200)]
GATEWAYS_IN_BUILDING: Final = 10

CONNECTED: Final = 0.93
NAMED: Final = 0.9


class Product(NamedTuple):
    """Model in the fleet, with its distribution."""

    share: int
    """Devices per thousand."""
    model: str
    variant: int
    maker: int
    """First three bytes of its MACs; 0: random."""
    firmware: Sequence[Version]
    hardware: Sequence[Version]


def _product(share: int, code: str, firmware: str, hardware: str, maker: int = 0) -> Product:
    """Build a product; versions are given with their weights, as in `2.4.1*70 2.4.0*30`."""
    model, _, variant = code.partition("-")
    return Product(share, model, int(variant or 0), maker, _versions(firmware), _versions(hardware))


def _versions(shares: str) -> Sequence[Version]:
    pairs = (each.split("*") for each in shares.split())
    return [Version.parse(text) for text, share in pairs for _ in range(int(share))]


PRODUCTS: Final = (
    _product(300, "0018", "2.4.1*700 2.4.0*250 2.3.7*47 2.5.0-beta.3*3", "1.2*1 1.3*1"),
    _product(160, "0005", "3.1.0*80 3.0.2*19 3.0.0*1", "2.0*4 2.1*1"),
    _product(130, "0011-04", "1.8.0*6 1.7.5*4", "1.0*1", 0xBC5729),
    _product(100, "0063", "1.2.9*90 1.3.0-beta.1*6 1.3.0*4", "1.1*1"),
    _product(90, "000F", "4.0.0*5 3.9.9*5", "3.0*9 3.1*1"),
    _product(70, "0043", "1.0.4*97 1.0.3*3", "1.0*1", 0xAC233F),
    _product(55, "0050", "1.1.0*8 1.0.4*2", "1.0*1 1.4*1", 0xE64ADE),
    _product(40, "0011-01", "1.8.0*1", "1.0*1", 0x0C4314),
    _product(25, "0060", "0.9.12*1", "0.9*1", 0x0C4315),
    _product(20, "0040", "2.0.0*1 2.0.1*1", "1.0*1"),
    _product(10, "0000", "0.0.0*1", "0.0*1"),
)
GATEWAYS: Final = (
    _product(800, "2011", "5.2.0*9 5.1.3*1", "2.0*1"),
    _product(200, "2031", "5.2.0*1", "1.0*1", 0x0001C0),
)

ROOMS: Final = (
    "Kitchen sensor",
    "Meeting room sensor",
    "Cold store",
    "Büro Fühler",
    "Küche Temperatur",
    "会議室 センサー",
    "倉庫",
    "Склад датчик",
    "Αποθήκη",
    "Salle de réunion",
)


class Member(NamedTuple):
    """Device of the fleet."""

    sighting: DeviceObservation
    labels: tuple[str, str, str]


def generate_members(size: int = SIZE) -> Iterator[Member]:
    """Yield the devices, each gateway before the devices behind it."""
    random = Random(1)  # noqa: S311 # the same fleet every time
    products, gateways = (
        [each for each in group for _ in range(each.share)] for group in (PRODUCTS, GATEWAYS)
    )
    gateway = Mac("")
    for index in range(size):
        product = _choose(random, gateways if index % GATEWAY_EVERY == 0 else products)
        mac = _mac(index, product.maker)
        if index % GATEWAY_EVERY == 0:
            gateway = mac
        yield Member(_observation(random, index, mac, gateway, product), _labels(random, index))


def fill_database(
    database: Database, size: int = SIZE, *, on_progress: Callable[[int], object] = lambda _: None
) -> None:
    """Insert the fleet into an empty database. `on_progress` is called with the number of devices so far."""
    source, done = generate_members(size), 0
    # Every batch touches most pages of every index: SQLite, with one writer, gets few large batches.
    writers, batch = (1, 250_000) if database.is_sqlite else (3, 20_000)
    with ThreadPoolExecutor(writers) as pool:
        running: deque[Future[int]] = deque()
        while part := list(islice(source, batch)):  # the next is generated while the others are written
            if len(running) == writers:
                on_progress(done := done + running.popleft().result())
            running.append(pool.submit(_add, database, part))
        for each in running:
            on_progress(done := done + each.result())
    database.write_now(_analyze)


def _add(database: Database, batch: Sequence[Member]) -> int:
    database.write_now(registry.record_observations, [each.sighting for each in batch])
    pairs = [(label, each.sighting.device) for each in batch for label in each.labels]
    database.write_now(registry.attach_labels, pairs, at=START)
    return len(batch)


def _analyze(connection: Connection) -> None:
    """Update the planner statistics, which PostgreSQL would do later: the measurement begins at once."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("ANALYZE")


def main() -> None:
    """Fill a database from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.api_fleet")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--database", default="sqlite")
    arguments = parser.parse_args()
    database, start = open_database(arguments.database, arguments.folder), time.monotonic()
    fill_database(
        database,
        arguments.size,
        on_progress=lambda done: print(f"{done:9,} {time.monotonic() - start:7.1f} s"),
    )
    database.close()


def _observation(random: Random, index: int, mac: Mac, gateway: Mac, product: Product) -> DeviceObservation:
    return DeviceObservation(
        device=mac,
        at=START + index,
        name=f"{_choose(random, ROOMS)} {index:06d}" if random.random() < NAMED else UNSET,
        gateway=gateway,
        model=ModelNumber(product.model),
        variant=product.variant,
        firmware=_choose(random, product.firmware),
        hardware=_choose(random, product.hardware),
        connected=random.random() < CONNECTED,
        status=0,
        parent=gateway,
        rssi=-40 - int(random.random() * 50),
        battery=int(random.random() * 101),
    )


def _mac(index: int, maker: int) -> Mac:
    """Return a unique MAC; the multiplication by an odd number spreads them."""
    spread = index * 0x9E3779B97F4A7C15
    return mac_from_int(maker << 24 | spread % (1 << 24) if maker else 0b11 << 46 | spread % (1 << 46))


def _labels(random: Random, index: int) -> tuple[str, str, str]:
    building = index // (GATEWAY_EVERY * GATEWAYS_IN_BUILDING)
    return _choose(random, PURPOSES), f"building {building:04d}", _choose(random, TEAMS)


def _choose(random: Random, values: Sequence[Value]) -> Value:
    return values[int(random.random() * len(values))]  # random.choice takes three times as long


if __name__ == "__main__":
    main()
