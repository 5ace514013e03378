"""Texts of messages for people: the subject, plain text and HTML of an e-mail, and the text of a chat.

Names of devices are in sentences, and those who install a device choose its name: sentences are put on one
line and escaped wherever the receiver interprets them.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors.protocol import MalformedTime
from meshfleet.protocol.times import parse_time
from meshfleet.service.notifications.messages import EventMessage, HumanMessage, MessageEntry, MessageKind

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_SUBJECT_LENGTH: Final = 200
_MAX_SENTENCE_LENGTH: Final = 1000

_PREFIXES: Final = {MessageKind.CLEARED: "Cleared", MessageKind.ACKNOWLEDGED: "Acknowledged"}
"""Prefixes of messages that matter less than the severity of their alarm."""
_EVENT_KINDS: Final = {
    f"alarm.{kind}": kind
    for kind in (MessageKind.OPENED, MessageKind.UPDATED, MessageKind.ACKNOWLEDGED, MessageKind.CLEARED)
}
_STILL_OPEN: Final = frozenset({MessageKind.REPEATED, MessageKind.STILL_OPEN})


class MessageText(NamedTuple):
    """Texts of a message."""

    subject: str
    plain: str
    html: str


class _Part(NamedTuple):
    """Part of a message: an alarm or a remark."""

    title: str
    details: tuple[str, ...] = ()
    link: str = ""


def build_message_text(
    message: HumanMessage | EventMessage, *, public_url: str, channel_name: str
) -> MessageText:
    """Return the texts of an e-mail. Links begin with `public_url`."""
    message = to_human_message(message)
    name = to_one_line(channel_name)
    parts = _build_parts(message, public_url, name)
    footer = f"Sent by Meshfleet at {public_url} to the channel {name}."
    return MessageText(
        subject=build_subject(message, channel_name),
        plain="\n\n".join([*map(_format_plain, parts), f"-- \n{footer}\n"]),
        html=_format_html(parts, footer),
    )


def build_chat_text(message: HumanMessage | EventMessage, *, public_url: str, channel_name: str) -> str:
    """Return the text of a message for Slack, Mattermost and other chats, which they show as it is."""
    message = to_human_message(message)
    parts = _build_parts(message, public_url, to_one_line(channel_name))
    count = len(message.entries) + message.more
    heading = [] if count <= 1 else [escape_chat(_count(count, "alarm") + ":")]
    return "\n\n".join([*heading, *(_format_plain(each, escape_chat) for each in parts)])


def build_subject(message: HumanMessage, channel_name: str) -> str:
    """Return the subject: one line that says what is wrong, the most important first."""
    count = len(message.entries) + message.more
    if message.kind is MessageKind.TEST:
        subject = f"[Test] Test message of the channel {to_one_line(channel_name)}"
    elif not message.entries:
        subject = f"[Cleared] {_describe_passed(message.passed)}"
    elif count == 1:
        subject = _format_title(message.entries[0])
    else:
        first = _sort(message.entries)[0]  # if it is over, all are
        prefix = "[Cleared] " if first.kind is MessageKind.CLEARED else ""
        subject = f"{prefix}{_count(count, 'alarm')}: {_format_sentence(first)}"
    return _cut(subject, _MAX_SUBJECT_LENGTH)


def to_human_message(message: HumanMessage | EventMessage) -> HumanMessage:
    """Return a message for people about an event, which a channel gets after a change of its format."""
    if isinstance(message, HumanMessage):
        return message
    kind, data = _EVENT_KINDS.get(message.type), message.data
    if kind is None:
        return HumanMessage(entries=[], kind=MessageKind.TEST)
    action = data.get("action")
    is_over = kind is MessageKind.CLEARED
    entry = MessageEntry(
        kind=kind,
        alarm=str(data.get("id", "")),
        severity=str(data.get("severity", "")),
        sentence=str(data.get("sentence", "")),
        action=str(action.get("text", "")) if isinstance(action, dict) and not is_over else "",
        since=str(data.get("since", "")),
    )
    return HumanMessage(entries=[entry], kind=kind)


def to_one_line(text: str) -> str:
    """Replace line breaks and characters that cannot be printed by spaces."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


# Blank characters of no width end what chats would take for a mention or a link.
_NO_WIDTH: Final = "\N{ZERO WIDTH SPACE}"
_LOOK_ALIKES: Final = str.maketrans(
    {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        "*": "\N{ASTERISK OPERATOR}",
        "`": "\N{MODIFIER LETTER GRAVE ACCENT}",
        "~": "\N{TILDE OPERATOR}",
        "@": f"@{_NO_WIDTH}",
    }
)


def escape_chat(text: str) -> str:
    """Escape a text so that Slack and Mattermost show it as it is: no markup, mentions or links.

    Neither has an escape character that the other one understands. So characters of markup are replaced by
    others that look alike. An underscore is markup only at the beginning or end of a word.
    """
    text = text.translate(_LOOK_ALIKES).replace("](", f"]{_NO_WIDTH}(").replace("://", f":{_NO_WIDTH}//")
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", "\N{FULLWIDTH LOW LINE}", text)


def _build_parts(message: HumanMessage, public_url: str, channel_name: str) -> list[_Part]:
    if message.kind is MessageKind.TEST:
        return [
            _Part(
                f"This is a test message of the channel {channel_name}: messages about alarms arrive here.",
                ("No alarm was opened, and there is nothing to do.",),
            )
        ]
    parts = [_build_part(each, public_url) for each in _sort(message.entries)]
    if message.more:
        verb = "is" if message.more == 1 else "are"
        title = f"{_count(message.more, 'more alarm')} {verb} not listed here."
        parts.append(_Part(title, link=f"{public_url}/alarms"))
    if message.passed:
        parts.append(_Part(_describe_passed(message.passed)))
    return parts


def _build_part(entry: MessageEntry, public_url: str) -> _Part:
    details = [f"Since {_format_since(entry.since)}"]
    if entry.kind is MessageKind.CLEARED:
        details = [f"Began {_format_since(entry.since)}"]
    elif entry.action:
        details.append(f"To do: {_cut(to_one_line(entry.action), _MAX_SENTENCE_LENGTH)}")
    return _Part(_format_title(entry), tuple(details), f"{public_url}/alarms/{entry.alarm}")


def _sort(entries: list[MessageEntry]) -> list[MessageEntry]:
    """Return the alarms that are open first, else in their order."""
    return sorted(entries, key=lambda each: each.kind is MessageKind.CLEARED)


def _format_title(entry: MessageEntry) -> str:
    prefix = _PREFIXES.get(entry.kind) or to_one_line(entry.severity).capitalize()
    still_open = "Still open: " if entry.kind in _STILL_OPEN else ""
    return f"[{prefix}] {still_open}{_format_sentence(entry)}"


def _format_sentence(entry: MessageEntry) -> str:
    return _cut(to_one_line(entry.sentence), _MAX_SENTENCE_LENGTH)


def _format_since(since: str) -> str:
    try:
        return f"{parse_time(since):%Y-%m-%d %H:%M} UTC"
    except MalformedTime:
        return to_one_line(since)


def _describe_passed(count: int) -> str:
    verb = "was" if count == 1 else "were"
    return f"{_count(count, 'alarm')} {verb} opened and cleared meanwhile."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _format_plain(part: _Part, escape_text: Callable[[str], str] = str) -> str:
    lines = [escape_text(part.title), *map(escape_text, part.details)]
    return "\n".join([*lines, part.link] if part.link else lines)


def _format_html(parts: list[_Part], footer: str) -> str:
    body = "\n".join(map(_format_html_part, parts))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Meshfleet</title></head>\n'
        f'<body style="font-family: sans-serif">\n{body}\n'
        f'<p style="color: #666; font-size: small">{escape(footer)}</p>\n</body></html>\n'
    )


def _format_html_part(part: _Part) -> str:
    lines = [f"<strong>{escape(part.title)}</strong>", *map(escape, part.details)]
    if part.link:
        lines.append(f'<a href="{escape(part.link)}">{escape(part.link)}</a>')
    text = "<br>\n".join(lines)
    return f"<p>{text}</p>"
