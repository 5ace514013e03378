"""`meshfleet channels`: where messages about alarms are sent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli.arguments import CHANNEL, DELIVERY
from meshfleet.cli.local_time_zone import find_local_time_zone
from meshfleet.cli.options import TEXT
from meshfleet.cli.output import (
    Column,
    flatten_fields,
    json_option,
    limit_option,
    print_fields,
    print_json,
    print_list,
    print_result,
    print_table,
)
from meshfleet.cli.service_access import call_service
from meshfleet.rest.bodies import decode_body
from meshfleet.rest.channels import ChannelKind, DeliveryState, NewAlarmRoutes, WebhookFormat

if TYPE_CHECKING:
    from meshfleet.client import AlarmRoute, Channel, Fleet, IssuedChannel

_COLUMNS: Final = (
    Column("id", lambda each: each.id, no_wrap=True),
    Column("name", lambda each: each.name),
    Column("kind", lambda each: each.kind),
    Column("to", lambda each: each.target),
    Column("state", lambda each: each.state),
    Column("waiting", lambda each: each.waiting),
    Column("dead", lambda each: each.dead),
    Column("problem", lambda each: each.problem),
)

_DELIVERY_COLUMNS: Final = (
    Column("id", lambda each: each.id, no_wrap=True),
    Column("created", lambda each: each.created_at, no_wrap=True),
    Column("alarm", lambda each: each.alarm),
    Column("kind", lambda each: each.kind),
    Column("state", lambda each: each.state),
    Column("next attempt", lambda each: each.due),
    Column("problem", lambda each: each.problem),
)


def _describe_match(route: AlarmRoute) -> list[str]:
    return [*route.match.rules, *route.match.labels, *route.match.gateways]


def _describe_times(route: AlarmRoute) -> str:
    if route.digest is not None:
        return f"daily at {route.digest} ({route.time_zone})"
    if route.hours is None:
        return "always"
    days = "" if len(route.hours.days) == 7 else f"{', '.join(route.hours.days)} "  # noqa: PLR2004 # a week
    return f"{days}{route.hours.start}-{route.hours.end} ({route.time_zone}), else {route.quiet}"


_ROUTE_COLUMNS: Final = (
    Column("name", lambda each: each.name),
    Column("from severity", lambda each: each.match.severity_at_least),
    Column("only", _describe_match),
    Column("channels", lambda each: list(each.channels)),
    Column("when", _describe_times),
    Column("then", lambda each: "later routes, too" if each.continues else "no other"),
)

_FORMAT = click.Choice([str(each) for each in WebhookFormat])


@click.group()
def channels() -> None:
    """Choose where messages about alarms are sent: webhooks, e-mails, MQTT and watchdogs."""


@channels.command("list")
@json_option
def list_channels(*, as_json: bool) -> None:
    """List all channels, and whether they work."""
    found = call_service(lambda fleet: fleet.channels.list())
    if as_json:
        for each in found:
            print_json(each)
    else:
        print_table(_COLUMNS, found)


@channels.command()
@click.argument("channel", type=CHANNEL)
@json_option
def show(channel: str, *, as_json: bool) -> None:
    """Show a channel: where it leads, and whether it works."""
    _print_channel(call_service(lambda fleet: fleet.channels.show(channel)), as_json=as_json)


@channels.command()
@click.argument("name", type=TEXT)
@click.option("--webhook", type=TEXT, metavar="URL", help="Send messages to this URL.")
@click.option("--email", type=TEXT, multiple=True, metavar="ADDRESS", help="Send e-mails; can be repeated.")
@click.option("--watchdog", type=TEXT, metavar="URL", help="Call this URL while the service is well.")
@click.option("--mqtt", is_flag=True, help="Keep a retained message for each alarm at the MQTT broker.")
@click.option(
    "--format", "format_", type=_FORMAT, default="standard", show_default=True, help="Format of a webhook."
)
@click.option("--routing-key", type=TEXT, help="Key of the integration, for the format pagerduty.")
@json_option
def add(  # noqa: PLR0913 # the options
    name: str,
    *,
    webhook: str | None,
    email: tuple[str, ...],
    watchdog: str | None,
    mqtt: bool,
    format_: str,
    routing_key: str | None,
    as_json: bool,
) -> None:
    """Create a channel called NAME: a webhook, e-mails, a watchdog or MQTT.

    The secret that signs the messages of a webhook is shown only once. The first channel gets routes:
    critical alarms at once, warnings from 07:00 to 20:00, others once a day at 08:00, in the time zone of
    this machine.
    """
    kinds = {
        ChannelKind.WEBHOOK: webhook,
        ChannelKind.EMAIL: email,
        ChannelKind.WATCHDOG: watchdog,
        ChannelKind.MQTT: mqtt,
    }
    chosen = [kind for kind, value in kinds.items() if value]
    if len(chosen) != 1:
        raise click.UsageError("Give one of --webhook, --email, --watchdog and --mqtt.")
    issued = call_service(
        lambda fleet: fleet.channels.create(
            name,
            chosen[0],
            url=webhook or watchdog,
            format=WebhookFormat(format_),
            routing_key=routing_key,
            recipients=email,
            time_zone=find_local_time_zone(),
        )
    )
    _print_issued(issued, f"{issued.channel.id} is {issued.channel.name}.", as_json=as_json)


@channels.command()
@click.argument("channel", type=CHANNEL)
@click.option("--name", type=TEXT, help="New name.")
@click.option("--url", type=TEXT, help="New URL of a webhook or watchdog.")
@click.option("--email", type=TEXT, multiple=True, metavar="ADDRESS", help="New recipients; can be repeated.")
@click.option("--format", "format_", type=_FORMAT, help="New format of a webhook.")
@click.option("--routing-key", type=TEXT, help="New key of the integration, for the format pagerduty.")
@click.option("--on/--off", "enabled", default=None, help="Switch the channel on or off.")
@json_option
def change(  # noqa: PLR0913 # the options
    channel: str,
    *,
    name: str | None,
    url: str | None,
    email: tuple[str, ...],
    format_: str | None,
    routing_key: str | None,
    enabled: bool | None,
    as_json: bool,
) -> None:
    """Change the settings of a channel. What is not given stays the same."""

    async def run(fleet: Fleet) -> Channel:
        before = await fleet.channels.show(channel)
        return await fleet.channels.change(
            channel,
            before.name if name is None else name,
            before.kind,
            url=url,
            format=WebhookFormat(format_ or before.format or WebhookFormat.STANDARD),
            routing_key=routing_key,
            recipients=email or before.recipients,
            enabled=before.enabled if enabled is None else enabled,
        )

    _print_channel(call_service(run), as_json=as_json)


@channels.command()
@click.argument("channel", type=CHANNEL)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def delete(channel: str, *, yes: bool, as_json: bool) -> None:
    """Delete a channel with its messages. No route may lead to it."""
    if not yes:
        click.confirm(f"Delete {channel} and its messages?", abort=True, err=True)
    call_service(lambda fleet: fleet.channels.delete(channel))
    print_result({"id": channel, "deleted": True}, f"{channel} is deleted.", as_json=as_json)


@channels.command()
@click.argument("channel", type=CHANNEL)
@json_option
def test(channel: str, *, as_json: bool) -> None:
    """Send a message to a channel now. The exit code is 1 if it is not delivered."""
    result = call_service(lambda fleet: fleet.channels.test(channel))
    outcome = "Delivered" if result.delivered else f"Not delivered: {result.problem}"
    status = "" if result.status is None else f" (status {result.status}, {result.milliseconds} ms)"
    print_result(result, f"{outcome}{status}", as_json=as_json)
    if not result.delivered:
        raise click.exceptions.Exit(1)


@channels.command()
@click.argument("channel", type=CHANNEL)
@json_option
def secret(channel: str, *, as_json: bool) -> None:
    """Replace the secret of a webhook, and show the new one. The old one also signs for 24 hours."""
    issued = call_service(lambda fleet: fleet.channels.rotate_secret(channel))
    _print_issued(issued, f"{issued.channel.id} has a new secret.", as_json=as_json)


@channels.command()
@click.argument("channel", type=CHANNEL)
@click.option(
    "--state",
    "states",
    type=click.Choice([str(each) for each in DeliveryState]),
    multiple=True,
    help="Show messages in this state; can be repeated. Default: all.",
)
@limit_option
@json_option
def deliveries(channel: str, *, states: tuple[str, ...], limit: int | None, as_json: bool) -> None:
    """List the messages of a channel, the newest first, and what became of them."""
    call_service(
        lambda fleet: print_list(
            fleet.channels.deliveries(channel, states=states),
            _DELIVERY_COLUMNS,
            as_json=as_json,
            limit=limit,
        )
    )


@channels.command()
@click.argument("channel", type=CHANNEL)
@click.argument("delivery", type=DELIVERY, required=False)
@json_option
def retry(channel: str, delivery: str | None, *, as_json: bool) -> None:
    """Try a message again that was given up; without DELIVERY, all of a channel."""
    if delivery is None:
        count = call_service(lambda fleet: fleet.channels.retry_dead(channel))
        print_result({"retried": count}, f"{_count(count)} tried again.", as_json=as_json)
        return
    retried = call_service(lambda fleet: fleet.channels.retry(channel, delivery))
    print_result(retried, f"{retried.id} is tried again.", as_json=as_json)


@channels.command()
@click.option(
    "--file",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON file with all routes, as --json prints them: they replace the present ones.",
)
@json_option
def routes(*, source: Path | None, as_json: bool) -> None:
    """Show which alarms are sent to which channels, or replace all routes by those of a file."""
    new = None if source is None else decode_body(NewAlarmRoutes, source.read_bytes()).items
    found = call_service(
        lambda fleet: fleet.channels.routes() if new is None else fleet.channels.set_routes(new)
    )
    if as_json:
        print_json({"items": found})
    else:
        print_table(_ROUTE_COLUMNS, found)


def _print_channel(channel: Channel, *, as_json: bool) -> None:
    if as_json:
        print_json(channel)
    else:
        print_fields(flatten_fields(channel))


def _print_issued(issued: IssuedChannel, sentence: str, *, as_json: bool) -> None:
    """Print a secret to standard output, so that it can be piped, and a sentence to standard error."""
    if as_json:
        print_json(issued)
        return
    if issued.secret is None:
        click.echo(sentence, err=True)
        return
    click.echo(f"{sentence} Its messages are signed with this secret, which is shown only once:", err=True)
    click.echo(issued.secret)


def _count(number: int) -> str:
    return "1 message is" if number == 1 else f"{number} messages are"
