"""Fields of requests to create or change a channel: which ones are necessary depends on its kind."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from meshfleet.errors import Fault, InvalidRequest, quote_input
from meshfleet.errors.protocol import MalformedText
from meshfleet.rest.channels import ChannelKind, WebhookFormat
from meshfleet.rest.inputs import parse_title
from meshfleet.service.notifications.channels import ChannelTarget, StoredChannel
from meshfleet.service.time_zones import list_time_zones

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.rest.channels import NewChannel

_ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})")
"""E-mail addresses that every mail server accepts. Those in quotes are rare, and often an attack."""


def parse_channel(new: NewChannel, before: StoredChannel | None = None) -> tuple[str, ChannelTarget]:
    """Return the name and the target of a channel. `before` is the channel that it replaces.

    Raise `InvalidRequest` that names all wrong fields.
    """
    url, routing_key = new.url, new.routing_key
    faults = list(_find_unneeded_fields(new))
    if before is not None:
        faults += _find_fixed_fields(new, before)
        url = before.target.url if url is None else url
        if routing_key is None and new.format is WebhookFormat.PAGERDUTY:
            routing_key = before.target.routing_key
    faults += _find_missing_fields(new, url, routing_key)
    faults += _find_wrong_recipients(new.recipients)
    try:
        name = parse_title(new.name)
    except MalformedText as exc:
        faults.append(Fault("name", exc.reason))
        name = ""
    if new.time_zone not in list_time_zones():
        faults.append(
            Fault("timeZone", f"{quote_input(new.time_zone)} is not a time zone such as Europe/Zurich")
        )
    if routing_key is not None and not (routing_key.isascii() and routing_key.isprintable()):
        faults.append(Fault("routingKey", "must consist of printable ASCII characters"))
    if faults:
        raise InvalidRequest(faults)
    target = ChannelTarget(
        url=url, format=new.format, routing_key=routing_key, recipients=tuple(new.recipients)
    )
    return name, target


_WITH_URL: Final = frozenset({ChannelKind.WEBHOOK, ChannelKind.WATCHDOG})
"""Kinds of channels that have a URL."""


def _find_unneeded_fields(new: NewChannel) -> list[Fault]:
    is_pagerduty = new.kind is ChannelKind.WEBHOOK and new.format is WebhookFormat.PAGERDUTY
    unneeded = {
        "url": new.url is not None and new.kind not in _WITH_URL,
        "format": new.format is not WebhookFormat.STANDARD and new.kind is not ChannelKind.WEBHOOK,
        "routingKey": new.routing_key is not None and not is_pagerduty,
        "recipients": bool(new.recipients) and new.kind is not ChannelKind.EMAIL,
    }
    owners = {
        "url": "a webhook or watchdog",
        "format": "a webhook",
        "routingKey": "a webhook in the format pagerduty",
        "recipients": "e-mails",
    }
    return [
        Fault(name, f"is only for {owners[name]}") for name, is_unneeded in unneeded.items() if is_unneeded
    ]


def _find_missing_fields(new: NewChannel, url: str | None, routing_key: str | None) -> list[Fault]:
    faults = []
    if not url and new.kind in _WITH_URL:
        faults.append(Fault("url", f"is required for a {new.kind}"))
    is_pagerduty = new.kind is ChannelKind.WEBHOOK and new.format is WebhookFormat.PAGERDUTY
    if is_pagerduty and not routing_key:
        faults.append(Fault("routingKey", "is required for the format pagerduty"))
    if not new.recipients and new.kind is ChannelKind.EMAIL:
        faults.append(Fault("recipients", "are required for e-mails"))
    return faults


def _find_fixed_fields(new: NewChannel, before: StoredChannel) -> list[Fault]:
    """Return the faults of changes that would make waiting messages unreadable for the new receiver."""
    if new.kind is not before.kind:
        return [Fault("kind", f"is {before.kind} and cannot change: create another channel")]
    is_text = new.format is WebhookFormat.TEXT
    if new.kind is ChannelKind.WEBHOOK and is_text is not before.is_for_people:
        return [Fault("format", "cannot change to or from text: create another channel")]
    return []


def _find_wrong_recipients(recipients: Sequence[str]) -> list[Fault]:
    faults, seen = [], set()
    for number, each in enumerate(recipients):
        if not _ADDRESS.fullmatch(each):
            faults.append(Fault(f"recipients[{number}]", f"{quote_input(each)} is not an e-mail address"))
        elif each.lower() in seen:
            faults.append(Fault(f"recipients[{number}]", f"{quote_input(each)} is there twice"))
        seen.add(each.lower())
    return faults
