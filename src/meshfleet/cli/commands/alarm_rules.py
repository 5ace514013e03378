"""`meshfleet alarms rules`: what is an alarm, and for how long it must last."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import click

from meshfleet.cli.arguments import DURATION, LABEL
from meshfleet.cli.options import TEXT
from meshfleet.cli.output import (
    Column,
    flatten_fields,
    json_option,
    print_fields,
    print_json,
    print_result,
    print_table,
)
from meshfleet.cli.service_access import call_service
from meshfleet.rest.alarm_rules import NewAlarmRule, RuleCondition, RuleOperator, RuleScope
from meshfleet.rest.alarms import AlarmSeverity

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from meshfleet.client import AlarmRuleBody, RulePreview

_COLUMNS: Final = (
    Column("id", lambda each: each.id, no_wrap=True),
    Column("name", lambda each: each.name),
    Column("on", lambda each: "yes" if each.enabled else "no", no_wrap=True),
    Column("severity", lambda each: each.severity, no_wrap=True),
    Column("rule", lambda each: each.sentence),
)
_EXAMPLE_COLUMNS: Final = (
    Column("device", lambda each: each.device, no_wrap=True),
    Column("name", lambda each: each.name),
    Column("from", lambda each: each.since, no_wrap=True),
    Column("to", lambda each: each.until, no_wrap=True),
    Column("peak", lambda each: each.peak, no_wrap=True),
)
_CONDITION: Final = re.compile(
    r"(?P<identifier>\S+)\s+(?P<operator>above|below|outside|equals|changes-to|silent-for)\s+(?P<value>.+)"
)
_WHEN_HELP: Final = (
    "What to look for: 'temperature above -15', 'temperature outside 2 to 8', 'motion equals 1',"
    " 'device-mode changes-to storage', 'temperature silent-for 2h'."
)
_SEVERITY: Final = click.Choice([str(each) for each in AlarmSeverity])
_OPTIONS: Final = (
    click.option("--when", type=TEXT, help=_WHEN_HELP),
    click.option("--clear", type=float, help="Value beyond which it is well again."),
    click.option("--offline", type=click.IntRange(1, 100), help="Share of the label that is offline, in %."),
    click.option("--label", "labels", type=LABEL, multiple=True, help="Only devices with this label."),
    click.option("--except-label", "except_labels", type=LABEL, multiple=True, help="No devices with it."),
    click.option("--model", "models", type=TEXT, multiple=True, help="Only this model number."),
    click.option("--for", "wait", type=DURATION, help="How long it must last, such as 15m. Default: 5m."),
    click.option("--clear-after", "back", type=DURATION, help="How long it must be gone. Default: 5m."),
    click.option("--severity", type=_SEVERITY, help="Severity of the alarm. Default: warning."),
    click.option("--group", is_flag=True, help="One alarm for all devices of the rule."),
)


def _rule_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that describe a rule of a user."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group()
def rules() -> None:
    """Show and change what is an alarm: built-in rules, and rules of your own."""


@rules.command("list")
@json_option
def list_rules(*, as_json: bool) -> None:
    """List all rules: the built-in ones, then your own."""
    found = call_service(lambda fleet: fleet.alarm_rules.list())
    if as_json:
        for each in found:
            print_json(each)
    else:
        print_table(_COLUMNS, found)


@rules.command()
@click.argument("rule", type=TEXT)
@json_option
def show(rule: str, *, as_json: bool) -> None:
    """Show a rule, such as rule-3 or battery-low."""
    _print_rule(call_service(lambda fleet: fleet.alarm_rules.show(rule)), as_json=as_json)


@rules.command()
@click.argument("name", type=TEXT)
@_rule_options
@json_option
def add(name: str, *, as_json: bool, **options: Any) -> None:
    """Create a rule called NAME: with --when for values, or with --label and --offline for a label."""
    new = _build_rule(name, **options)
    _print_rule(call_service(lambda fleet: fleet.alarm_rules.create(new)), as_json=as_json)


@rules.command()
@_rule_options
@json_option
def preview(*, as_json: bool, **options: Any) -> None:
    """Say what a rule would have found in the samples of the last 7 days. Nothing is stored."""
    new = _build_rule("Preview", **options)
    found: RulePreview = call_service(lambda fleet: fleet.alarm_rules.preview(new))
    if as_json:
        print_json(found)
        return
    click.echo(found.sentence)
    if found.examples:
        print_table(_EXAMPLE_COLUMNS, found.examples)


@rules.command()
@click.argument("rule", type=TEXT)
@click.option("--name", type=TEXT, help="New name of a rule of your own.")
@click.option("--for", "wait", type=DURATION, help="How long it must last.")
@click.option("--clear-after", "back", type=DURATION, help="How long it must be gone.")
@click.option("--severity", type=_SEVERITY, help="New severity of a rule of your own.")
@click.option(
    "--threshold",
    "thresholds",
    type=TEXT,
    multiple=True,
    metavar="NAME=NUMBER",
    help="Number of a built-in rule, as `show` names it; can be repeated.",
)
@json_option
def change(  # noqa: PLR0913 # the options
    rule: str,
    *,
    name: str | None,
    wait: timedelta | None,
    back: timedelta | None,
    severity: str | None,
    thresholds: tuple[str, ...],
    as_json: bool,
) -> None:
    """Change a rule; what is not given stays. Its alarms end, and open again if the fault lasts."""
    changes: dict[str, Any] = {}
    if name is not None:
        changes["name"] = name
    if wait is not None:
        changes["for_seconds"] = _to_seconds(wait)
    if back is not None:
        changes["clear_seconds"] = _to_seconds(back)
    if severity is not None:
        changes["severity"] = AlarmSeverity(severity)
    if thresholds:
        changes["thresholds"] = dict(map(_parse_threshold, thresholds))
    if not changes:
        raise click.UsageError("Give what to change: --name, --for, --clear-after, --severity, --threshold.")
    _print_rule(call_service(lambda fleet: fleet.alarm_rules.change(rule, **changes)), as_json=as_json)


@rules.command()
@click.argument("rule", type=TEXT)
@json_option
def enable(rule: str, *, as_json: bool) -> None:
    """Switch a rule on."""
    changed = call_service(lambda fleet: fleet.alarm_rules.change(rule, enabled=True))
    print_result(changed, f"{changed.id} is on: {changed.sentence}", as_json=as_json)


@rules.command()
@click.argument("rule", type=TEXT)
@json_option
def disable(rule: str, *, as_json: bool) -> None:
    """Switch a rule off. Its alarms end."""
    changed = call_service(lambda fleet: fleet.alarm_rules.change(rule, enabled=False))
    print_result(changed, f"{changed.id} is off.", as_json=as_json)


@rules.command()
@click.argument("rule", type=TEXT)
@json_option
def reset(rule: str, *, as_json: bool) -> None:
    """Give a built-in rule its defaults."""
    changed = call_service(lambda fleet: fleet.alarm_rules.reset(rule))
    print_result(changed, f"{changed.id}: {changed.sentence}", as_json=as_json)


@rules.command()
@click.argument("rule", type=TEXT)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def remove(rule: str, *, yes: bool, as_json: bool) -> None:
    """Delete a rule of your own. Its alarms end."""
    if not yes:
        click.confirm(f"Delete {rule}?", abort=True, err=True)
    call_service(lambda fleet: fleet.alarm_rules.delete(rule))
    print_result({"id": rule, "deleted": True}, f"{rule} is deleted.", as_json=as_json)


def _build_rule(  # noqa: PLR0913 # the options
    name: str,
    *,
    when: str | None,
    clear: float | None,
    offline: int | None,
    labels: tuple[str, ...],
    except_labels: tuple[str, ...],
    models: tuple[str, ...],
    wait: timedelta | None,
    back: timedelta | None,
    severity: str | None,
    group: bool,
) -> NewAlarmRule:
    settings: dict[str, Any] = {
        "name": name,
        "severity": None if severity is None else AlarmSeverity(severity),
        "for_seconds": None if wait is None else _to_seconds(wait),
        "clear_seconds": None if back is None else _to_seconds(back),
    }
    if (when is None) == (offline is None):
        raise click.UsageError("Give one of --when and --offline.")
    if when is None:
        if len(labels) != 1:
            raise click.UsageError("--offline needs one --label.")
        return NewAlarmRule(kind="label-offline", label=labels[0], share_percent=offline, **settings)
    condition = _parse_condition(when, clear)
    return NewAlarmRule(
        kind="measurement",
        when=condition,
        scope=RuleScope(labels=labels, except_labels=except_labels, models=models),
        group_by="rule" if group else "device",
        **settings,
    )


def _parse_condition(text: str, clear: float | None) -> RuleCondition:
    """Parse a condition such as `temperature above -15`."""
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise click.UsageError(f"--when {text!r} is not a condition such as 'temperature above -15'.")
    operator, value = RuleOperator(found["operator"]), found["value"]
    upper = None
    if operator is RuleOperator.OUTSIDE:
        value, _, upper_text = value.partition(" to ")
        upper = _parse_number(upper_text)
    parsed = _parse_value(value)
    if operator is RuleOperator.SILENT_FOR:
        parsed = int(DURATION.convert(value, None, None).total_seconds())
    return RuleCondition(
        identifier=found["identifier"], operator=operator, value=parsed, upper=upper, clear_value=clear
    )


def _parse_value(text: str) -> float | int | bool | str:
    """Return a value of the command line as a number, true or false, or else as text."""
    if text in {"true", "false"}:
        return text == "true"
    try:
        return _parse_number(text)
    except click.UsageError:
        return text


def _parse_number(text: str) -> float | int:
    try:
        return int(text) if re.fullmatch(r"\s*[+-]?\d{1,15}\s*", text) else float(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is not a number.") from None


def _parse_threshold(text: str) -> tuple[str, float | int]:
    name, _, value = text.partition("=")
    return name, _parse_number(value)


def _to_seconds(duration: timedelta) -> int:
    return round(duration.total_seconds())


def _print_rule(rule: AlarmRuleBody, *, as_json: bool) -> None:
    if as_json:
        print_json(rule)
    else:
        print_fields(flatten_fields(rule))
