"""Settings of the service as command-line options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meshfleet.errors.startup import WrongSettings
from meshfleet.settings import SETTINGS, list_given_names, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.settings import Setting, Settings


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


def load_command_settings(config: Path | None, flags: dict[str, Any]) -> Settings:
    """Load settings from flags, environment and settings file. Raise `UsageError` that lists all faults."""
    return _load_settings(config, flags, with_certificate=True)


def load_data_settings(config: Path | None, flags: dict[str, Any]) -> Settings:
    """Load settings for a command that only needs the data. Raise `UsageError` that lists all faults.

    The certificate is not read: it may be wrong, or readable for the service only.
    """
    return _load_settings(config, flags, with_certificate=False)


def _load_settings(config: Path | None, flags: dict[str, Any], *, with_certificate: bool) -> Settings:
    try:
        return load_settings(_flag_values(flags), os.environ, file=config, with_certificate=with_certificate)
    except WrongSettings as exc:
        raise click.UsageError(f"invalid settings:\n{exc}") from exc


def load_valid_settings(config: Path | None, flags: dict[str, Any]) -> Settings:
    """Load the settings from flags, environment variables and file. Raise `WrongSettings` with all faults."""
    return load_settings(_flag_values(flags), os.environ, file=config)
