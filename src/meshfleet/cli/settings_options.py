"""Settings of the service as command-line options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from meshfleet.errors.startup import WrongSettings
from meshfleet.settings import SETTINGS, list_given_names, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from meshfleet.settings import Setting, Settings


_ALL_SETTINGS: Final = frozenset(each.name for each in SETTINGS)

DATA_SETTINGS: Final = frozenset(
    name
    for name in _ALL_SETTINGS
    if name in {"data", "database", "backup-before-migration"} or name.startswith("retention.")
)
"""Settings of commands that only need the data. Others may be wrong, or readable for the service only."""


class SettingsCommand(click.Command):
    """Command whose help lists the limits of the embedded MQTT broker last, under their own heading."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of all options, then the help of the broker limits."""
        records: dict[bool, list[tuple[str, str]]] = {False: [], True: []}
        for each in self.get_params(ctx):
            if (record := each.get_help_record(ctx)) is not None:
                records[str(each.name).startswith("limits_")].append(record)
        for is_limit, heading in ((False, "Options"), (True, "Broker limits")):
            with formatter.section(heading):
                formatter.write_dl(records[is_limit])


def settings_options(*names: str) -> Callable[[Any], Any]:
    """Return a decorator that adds `--config` and a flag for each named setting.

    Without names, there is a flag for every setting.
    """

    def add(command: Any) -> Any:
        for each in reversed([each for each in SETTINGS if not names or each.name in names]):
            command = click.option(each.flag, each.parameter, metavar=each.metavar, help=_format_help(each))(
                command
            )
        return _config_option(command)

    return add


_config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML file with settings.  [default: meshfleet.toml, if it exists]",
)


def _format_help(setting: Setting) -> str:
    default = f"; default: {setting.default_text}" if setting.default_text else ""
    return f"{setting.help}  [env var: {setting.variable}{default}]"


def list_explicit_settings(config: Path | None, flags: dict[str, Any]) -> frozenset[str]:
    """Return the names of the settings given by flags, environment variables or the settings file."""
    return list_given_names(_flag_values(flags), os.environ, file=config)


def _flag_values(flags: dict[str, Any]) -> dict[str, Any]:
    return {each.name: flags[each.parameter] for each in SETTINGS if flags.get(each.parameter) is not None}


def load_command_settings(
    config: Path | None, flags: dict[str, Any], names: Container[str] = _ALL_SETTINGS
) -> Settings:
    """Load the settings in `names` as `load_valid_settings`. Raise `UsageError` that lists all faults."""
    try:
        return load_valid_settings(config, flags, names)
    except WrongSettings as exc:
        raise click.UsageError(f"invalid settings:\n{exc}") from exc


def load_valid_settings(
    config: Path | None, flags: dict[str, Any], names: Container[str] = _ALL_SETTINGS
) -> Settings:
    """Load the settings in `names` from flags, environment variables and file; others get their defaults.

    Raise `WrongSettings` with all faults.
    """
    return load_settings(_flag_values(flags), os.environ, file=config, names=names)
