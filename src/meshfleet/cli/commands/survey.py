"""`meshfleet survey`: list, export, import and remove the places at which devices were on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from meshfleet.cli.arguments import site_argument
from meshfleet.cli.options import TEXT
from meshfleet.cli.output import Column, json_option, limit_option, print_list, print_result
from meshfleet.cli.service_access import call_service
from meshfleet.cli.survey_files import format_survey_csv, format_survey_json, import_survey

_COLUMNS: Final = (
    Column("id", lambda each: each.id, no_wrap=True),
    Column("device", lambda each: each.device, no_wrap=True),
    Column("floor", lambda each: each.floor),
    Column("x", lambda each: each.x),
    Column("y", lambda each: each.y),
    Column("from", lambda each: each.since),
    Column("anchors", lambda each: each.anchors),
    Column("by", lambda each: each.created_by),
)


@click.group()
def survey() -> None:
    """List, export, import and remove survey points of a site."""


@survey.command("list")
@site_argument
@limit_option
@json_option
def list_points(site: str, *, limit: int | None, as_json: bool) -> None:
    """List the survey points of a site, the oldest first."""
    call_service(
        lambda fleet: print_list(fleet.sites.survey_points(site), _COLUMNS, as_json=as_json, limit=limit)
    )


@survey.command()
@site_argument
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["json", "csv"]),
    default="json",
    show_default=True,
    help="json: an object per line; csv: for spreadsheet programs.",
)
@json_option
def export(site: str, file_format: str, *, as_json: bool) -> None:
    """Print all survey points of a site with their readings, the oldest first."""
    if file_format == "csv" and as_json:
        raise click.UsageError("--format csv and --json exclude each other.")
    records = call_service(lambda fleet: fleet.sites.export_survey(site))
    text = format_survey_csv(records) if file_format == "csv" else format_survey_json(records)
    click.echo(text, nl=False)


@survey.command("import")
@site_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def import_file(site: str, file: Path, *, as_json: bool) -> None:
    """Add the survey points in FILE to a site: JSON or CSV, as `meshfleet survey export` prints it.

    Lines that an emulated gateway prints with --survey --json work too: without readings, the service takes
    those that it has kept. Points that the site has already are left as they are. No point is added if a line
    is wrong.
    """
    count = call_service(lambda fleet: import_survey(fleet, site, file))
    sentence = f"{count.added} survey points are added, {count.unchanged} were there already."
    print_result(count, sentence, as_json=as_json)


@survey.command()
@site_argument
@click.argument("point", type=TEXT)
@json_option
def remove(site: str, point: str, *, as_json: bool) -> None:
    """Withdraw a survey point."""
    call_service(lambda fleet: fleet.sites.remove_survey_point(site, point))
    print_result({"id": point, "removed": True}, f"{point} is withdrawn.", as_json=as_json)
