"""Options of `meshfleet gateway` that choose the simulated site, and how devices move in it."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct
from msgspec.structs import replace

from meshfleet.cli.options import NumberParamType
from meshfleet.emulator import SiteKind, generate_position_site, generate_site, parse_site
from meshfleet.emulator.simulation.position_sites import MAX_ANCHORS, add_walkers, plan_survey
from meshfleet.emulator.simulation.site import DEFAULT_INTERVAL, MAX_DEVICES, RECEIVER_LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.emulator import Site
    from meshfleet.protocol.ids import Mac

_DEFAULT_DEVICES: Final = 10
_DEFAULT_ANCHORS: Final = 12
_DEFAULT_ANCHOR_GAINS: Final = 3.0
_MAX_SURVEY_POINTS: Final = 1_000


class SiteOptions(Struct, frozen=True, kw_only=True):
    """Values of the options that `site_options` adds; None for an option that is not given."""

    devices: int | None
    site: Path | None
    site_kind: str | None
    anchors: int | None
    anchor_gains: float | None
    walkers: int | None
    receivers: int | None
    interval: float | None
    survey: int | None


_OPTIONS: Final = (
    click.option(
        "--devices",
        type=click.IntRange(0, MAX_DEVICES),
        help=f"Number of simulated devices.  [default: {_DEFAULT_DEVICES}]",
    ),
    click.option(
        "--site",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="JSON file that describes the simulated devices, in the format printed by --describe.",
    ),
    click.option(
        "--site-kind",
        type=click.Choice([each.value for each in SiteKind]),
        help="Generate a site for tests of positioning: a hall of 40 m x 25 m, offices with walls, or a "
        "building of three such floors, with anchors in addition to the devices.",
    ),
    click.option(
        "--anchors",
        type=click.IntRange(1, MAX_ANCHORS),
        help=f"With --site-kind: number of anchors per floor.  [default: {_DEFAULT_ANCHORS}]",
    ),
    click.option(
        "--anchor-gains",
        type=NumberParamType(0, 10),
        metavar="DB",
        help="With --site-kind: standard deviation of the antenna gains of the anchors in dB.  "
        f"[default: {_DEFAULT_ANCHOR_GAINS}]",
    ),
    click.option(
        "--walkers",
        type=click.IntRange(0, MAX_DEVICES),
        help="Number of further devices that walk between random points.  [default: 0]",
    ),
    click.option(
        "--receivers",
        type=click.IntRange(*RECEIVER_LIMITS),
        help="Maximum number of nodes that report the RSSI of a device.  "
        f"[default: 4 and its links, with --site-kind {RECEIVER_LIMITS[1]}]",
    ),
    click.option(
        "--interval",
        type=NumberParamType(0.1, 3600),
        help=f"Simulated seconds between two RSSI reports of a moving device.  [default: {DEFAULT_INTERVAL}]",
    ),
    click.option(
        "--survey",
        type=click.IntRange(1, _MAX_SURVEY_POINTS),
        metavar="POINTS",
        help="Simulate a person who stands with a device for a minute at each of this number of points, and "
        "print each as a survey point.",
    ),
)


def site_options(command: Any) -> Any:
    """Add the options that choose the site to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def load_site(mac: Mac, seed: int, options: SiteOptions) -> Site:
    """Read or generate the site that the options choose. Raise `UsageError` if they contradict each other."""
    if options.site_kind is None and (options.anchors is not None or options.anchor_gains is not None):
        raise click.UsageError("--anchors and --anchor-gains need --site-kind.")
    if options.site is None:
        site = _generate_site(mac, seed, options)
    else:
        _refuse_options_of_generated_sites(options)
        site = parse_site(options.site.read_bytes(), source=str(options.site), gateway=mac, seed=seed)
    if options.survey is not None:
        with _usage_errors():
            site = plan_survey(site, options.survey)
    return replace(
        site,
        receivers=site.receivers if options.receivers is None else options.receivers,
        interval=site.interval if options.interval is None else options.interval,
    )


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn a `ValueError` into a usage error: the numbers of devices do not fit together."""
    try:
        yield
    except ValueError as exc:
        raise click.UsageError(f"{exc}.") from exc


def _generate_site(mac: Mac, seed: int, options: SiteOptions) -> Site:
    devices = _DEFAULT_DEVICES if options.devices is None else options.devices
    with _usage_errors():
        if options.site_kind is None:
            site = generate_site(mac, devices=devices, seed=seed)
        else:
            site = generate_position_site(
                mac,
                SiteKind(options.site_kind),
                anchors=_DEFAULT_ANCHORS if options.anchors is None else options.anchors,
                devices=devices,
                gain_sd=_DEFAULT_ANCHOR_GAINS if options.anchor_gains is None else options.anchor_gains,
                seed=seed,
            )
        return add_walkers(site, options.walkers) if options.walkers else site


def _refuse_options_of_generated_sites(options: SiteOptions) -> None:
    for name in ("devices", "site_kind", "walkers"):
        if getattr(options, name) is not None:
            option = name.replace("_", "-")
            raise click.UsageError(
                f"--{option} and --site exclude each other: the site file lists its devices."
            )
