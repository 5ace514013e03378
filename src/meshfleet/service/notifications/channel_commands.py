"""Changes of channels that users make. Each one has a row in the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from meshfleet.db.tables import channel, channel_alarm, notification
from meshfleet.errors import AlreadyExists, ChannelInUse, Conflict, NotFound
from meshfleet.rest.channels import MAX_CHANNELS, ChannelKind, DeliveryState, IssuedChannel
from meshfleet.service.audit import log as audit_log
from meshfleet.service.notifications import route_commands, views
from meshfleet.service.notifications.channel_fields import parse_channel
from meshfleet.service.notifications.channels import ChannelTarget, StoredChannel, to_channel
from meshfleet.service.notifications.signature import create_secret

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

    from meshfleet.rest.channels import Channel, ChannelTest, NewChannel
    from meshfleet.service.actor import Actor

_OLD_SECRET_MS: Final = 24 * 3600 * 1000
"""Time for which messages are also signed with the secret that was replaced."""

_WORKS_AGAIN: Final[dict[str, Any]] = {
    "problem": None,
    "failing_since": None,
    "failures": 0,
    "retry_at": None,
}
"""Columns of a channel that has not failed."""


def create_channel(connection: Connection, new: NewChannel, *, by: Actor, now: int) -> IssuedChannel:
    """Create a channel. The first one gets routes, unless there are some.

    Raise `InvalidRequest` for fields that are missing or not for this kind, `AlreadyExists` if another
    channel has the name, and `Conflict` if there are too many.
    """
    name, target = parse_channel(new)
    if connection.dialect.name == "postgresql":  # two channels at once are never both the first
        connection.exec_driver_sql("LOCK TABLE channel IN SHARE ROW EXCLUSIVE MODE")
    others = connection.execute(select(channel.c.kind)).scalars().all()
    if len(others) >= MAX_CHANNELS:
        raise Conflict(f"there are {len(others)} channels, which is the maximum: delete one first")
    if new.kind is ChannelKind.MQTT and new.kind in others:
        raise Conflict("there is a channel of the kind mqtt already: all of them would have the same topics")
    secret = create_secret() if new.kind is ChannelKind.WEBHOOK else None
    values = {
        "name": name,
        "kind": str(new.kind),
        "enabled": new.enabled,
        "target": _encode_target(target),
        "secret": secret,
        "created_at": now,
        "version": 1,
        **_WORKS_AGAIN,
    }
    try:
        number: int = connection.execute(insert(channel).values(values).returning(channel.c.id)).scalar_one()
    except IntegrityError:
        raise _build_name_conflict(name) from None
    is_first = not any(kind != ChannelKind.WATCHDOG for kind in others)
    if is_first and new.kind is not ChannelKind.WATCHDOG and not route_commands.has_routes(connection):
        route_commands.write_routes(
            connection, route_commands.build_default_routes(views.format_channel_id(number), new.time_zone)
        )
    created = views.load_channel(connection, number, now=now)
    audit_log.record_change(connection, by, "channel.create", created.id, now=now, **_describe(created))
    return IssuedChannel(channel=created, secret=secret)


def replace_channel(connection: Connection, number: int, new: NewChannel, *, by: Actor, now: int) -> Channel:
    """Replace the settings of a channel. Without `url` or `routingKey`, these stay the same.

    A channel with another target, or one that is switched on again, is tried at once. Raise `InvalidRequest`
    if it would be of another kind, and as `create_channel`.
    """
    row = lock_channel(connection, number)
    before = to_channel(row, now)
    name, target = parse_channel(new, before)
    changes: dict[str, Any] = {}
    if target != before.target or (new.enabled and not before.is_enabled):
        changes |= _WORKS_AGAIN
    try:
        _update_channel(
            connection,
            number,
            name=name,
            enabled=new.enabled,
            target=_encode_target(target),
            **changes,
        )
    except IntegrityError:
        raise _build_name_conflict(name) from None
    if changes:
        told = channel_alarm.c.channel == number
        connection.execute(update(channel_alarm).where(told).values(check_at=now))
    changed = views.load_channel(connection, number, now=now)
    renamed = {} if name == before.name else {"before": before.name}
    audit_log.record_change(
        connection, by, "channel.change", changed.id, now=now, **_describe(changed), **renamed
    )
    return changed


def delete_channel(connection: Connection, number: int, *, by: Actor, now: int) -> set[int]:
    """Delete a channel with its messages. Raise `ChannelInUse` if a route leads to it.

    Return the alarms whose retained messages are to be removed from the MQTT broker.
    """
    row = lock_channel(connection, number)
    deleted = views.load_channel(connection, number, now=now)
    routes = views.load_routes(connection).items
    if names := [each.name for each in routes if deleted.id in each.channels]:
        raise ChannelInUse(f"routes lead to this channel: {', '.join(names)}; change them first")
    published = _load_published(connection, number) if row.kind == ChannelKind.MQTT else set()
    connection.execute(delete(channel).where(channel.c.id == number))
    audit_log.record_change(connection, by, "channel.delete", deleted.id, now=now, **_describe(deleted))
    return published


def _load_published(connection: Connection, number: int) -> set[int]:
    """Load the alarms of which a channel was told, and whose end it was not told."""
    told = select(channel_alarm.c.alarm).where(channel_alarm.c.channel == number)
    columns = notification.c
    is_unsent = columns.state.in_([str(DeliveryState.WAITING), str(DeliveryState.DEAD)])
    waiting = select(columns.alarm).where(columns.channel == number, is_unsent, columns.alarm.is_not(None))
    return set(connection.scalars(told)) | set(connection.scalars(waiting))


def rotate_secret(connection: Connection, number: int, *, by: Actor, now: int) -> IssuedChannel:
    """Replace the secret of a webhook. For 24 hours messages are signed with the old one, too.

    Raise `Conflict` if the channel is no webhook.
    """
    row = lock_channel(connection, number)
    if row.kind != ChannelKind.WEBHOOK:
        raise Conflict(f"{row.name} is no webhook: its messages are not signed")
    secret = create_secret()
    old = {} if row.secret is None else {"old_secret": row.secret, "old_secret_until": now + _OLD_SECRET_MS}
    _update_channel(connection, number, secret=secret, **old)
    changed = views.load_channel(connection, number, now=now)
    audit_log.record_change(connection, by, "channel.secret", changed.id, now=now, name=changed.name)
    return IssuedChannel(channel=changed, secret=secret)


def record_test(
    connection: Connection, tested: StoredChannel, result: ChannelTest, *, by: Actor, now: int
) -> None:
    """Record a message that was sent as a test in the audit log."""
    identity = views.format_channel_id(tested.id)
    detail = {"name": tested.name, "delivered": result.delivered}
    audit_log.record_change(connection, by, "channel.test", identity, now=now, **detail)


def lock_channel(connection: Connection, number: int) -> Row[Any]:
    """Load the row of a channel, and lock it until the transaction ends. Raise `NotFound`."""
    row = connection.execute(select(channel).where(channel.c.id == number).with_for_update()).first()
    if row is None:
        raise NotFound(f"{views.format_channel_id(number)} does not exist")
    return row


def _update_channel(connection: Connection, number: int, **values: Any) -> None:
    statement = update(channel).where(channel.c.id == number)
    connection.execute(statement.values(version=channel.c.version + 1, **values))


def _encode_target(target: ChannelTarget) -> str:
    return msgspec.json.encode(target).decode()


def _build_name_conflict(name: str) -> AlreadyExists:
    return AlreadyExists(f"a channel named {name} already exists")


def _describe(shown: Channel) -> dict[str, Any]:
    """Return what the audit log says of a channel: its target is masked."""
    return {
        "name": shown.name,
        "kind": str(shown.kind),
        "destination": shown.target,
        "enabled": shown.enabled,
    }
