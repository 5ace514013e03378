"""`meshfleet broker-config`: what another broker has to be told."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from meshfleet.cli.opening import opened
from meshfleet.cli.settings import settings_of, settings_options
from meshfleet.errors import UnusableFolder
from meshfleet.link import Address
from meshfleet.service.gateways import store
from meshfleet.service.mqtt.mosquitto import USER, acl_file, config_file, own_password, password_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.settings import Settings
    from meshfleet.wire.ids import Mac

_HERE: Final = Address(host="127.0.0.1", port=1883)
"""Where a broker is of which nobody says where."""

_OTHERS: Final = 0o077
"""What the group and everybody else may do."""


@click.group("broker-config")
def broker_config() -> None:
    """Configure another broker for the service."""


@broker_config.command()
@settings_options("data", "broker", "topic-prefix", "database")
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default="meshfleet-mosquitto",
    show_default=True,
    help="Where the files are written; nobody else may read there.",
)
@click.option("--json", "as_json", is_flag=True, help="Say as JSON what was written.")
def mosquitto(*, config: Path | None, out: Path, as_json: bool, **flags: str | None) -> None:
    """Write the files with which mosquitto 2 takes the place of the embedded broker.

    They let in the service and all claimed gateways, each where it belongs. Run it again when gateways
    were claimed or released or got new passwords, and send mosquitto a SIGHUP. The service may run meanwhile.
    """
    settings = settings_of(config, flags)
    folder = out.absolute()
    with opened(settings) as database:
        password = database.write_now(own_password)
        hashes = database.read_now(store.broker_hashes)
    known = {mac: hashed for mac, hashed in hashes.items() if hashed is not None}
    broker = settings.outside or _HERE
    _write(folder, _files(settings, folder, broker, password, known))
    say = _say_json if as_json else _say
    say(folder, broker, list(known), [mac for mac in hashes if mac not in known])


def _files(
    settings: Settings, folder: Path, broker: Address, password: str, gateways: Mapping[Mac, str]
) -> dict[str, str]:
    """What is in which file."""
    login = str(broker).replace("://", f"://{USER}:{password}@", 1)
    return {
        "passwords": password_file(password, gateways),
        "acl": acl_file(settings.topic_prefix),
        "mosquitto.conf": config_file(passwords=folder / "passwords", acl=folder / "acl"),
        "meshfleet.env": f"MESHFLEET_BROKER={login}\n",
    }


# --- Files ---


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files that only their owner reads, each whole or not at all."""
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        if os.name != "nt" and folder.stat().st_mode & _OTHERS:  # Windows has no such modes
            raise UnusableFolder(
                f"others can read {folder}; give another one with --out, or: chmod 700 {folder}"
            )
        for name, text in files.items():
            _replace(folder / name, text)
    except OSError as exc:
        raise UnusableFolder(f"{folder} cannot be written: {exc.strerror}") from exc


def _replace(path: Path, text: str) -> None:
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    made = Path(name)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            _give_away(file.fileno(), path.parent)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def _give_away(file: int, folder: Path) -> None:
    """What root writes is for whom the folder belongs to: mosquitto is somebody of its own."""
    if os.name != "nt" and os.geteuid() == 0:
        owner = folder.stat()
        os.fchown(file, owner.st_uid, owner.st_gid)


# --- What is told ---


def _say(folder: Path, broker: Address, known: list[Mac], unknown: list[Mac]) -> None:
    click.echo(f"Written to {folder} for the service and {_counted(known)}")
    click.echo(f"Give mosquitto a listener and the line: include_dir {folder}")
    click.echo(f"Start the service with the variable in {folder / 'meshfleet.env'}: it is")
    click.echo(f"  --broker {broker} with the user {USER} and its password, which is told nowhere else")
    if unknown:
        click.echo(f"{_counted(unknown)} cannot log in before getting new credentials:")
        click.echo("".join(f"  {mac}\n" for mac in unknown), nl=False)
    click.echo("When gateways are claimed, rotated or released, run this again and send mosquitto a SIGHUP")


def _counted(macs: list[Mac]) -> str:
    return f"{len(macs)} gateway{'' if len(macs) == 1 else 's'}"


def _say_json(folder: Path, broker: Address, known: list[Mac], unknown: list[Mac]) -> None:
    told = {
        "folder": str(folder),
        "environment": str(folder / "meshfleet.env"),
        "broker": str(broker),
        "username": USER,
        "gateways": known,
        "gatewaysWithoutPassword": unknown,
    }
    click.echo(msgspec.json.encode(told))
