"""Check of webhooks, for programs that receive them."""

from __future__ import annotations

import hmac
import re
import time
from typing import TYPE_CHECKING, Final

from meshfleet.errors import InvalidWebhook
from meshfleet.rest.webhooks import (
    DIGEST,
    ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    build_signed_content,
    format_signature,
    parse_secret,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TOLERANCE_SECONDS: Final = 300
_SECONDS = re.compile("[0-9]{1,12}")


def verify_webhook(
    body: bytes,
    headers: Mapping[str, str],
    secret: str | Iterable[str],
    *,
    tolerance_seconds: float = _TOLERANCE_SECONDS,
) -> None:
    """Raise `InvalidWebhook` if a request is not a webhook of the service, or if it is an old one.

    `body` are the bytes as received: JSON that was decoded and encoded again has another signature. `secret`
    is that of the channel (`whsec_…`); give several if it may be one of them. The time of the message may
    differ from that of this machine by `tolerance_seconds`, so that a recorded request cannot be repeated
    later. A message may come several times, always with the same `webhook-id`.
    """
    by_name = {name.lower(): value for name, value in headers.items()}
    message_id, timestamp, signatures = (
        _get_header(by_name, name) for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER)
    )
    content = build_signed_content(message_id, timestamp, body)
    expected = [
        format_signature(hmac.digest(_parse_secret(each), content, DIGEST)).encode()
        for each in ([secret] if isinstance(secret, str) else secret)
    ]
    given = [each.encode("utf-8", "replace") for each in signatures.split()]
    # All are compared, so that the time that this takes tells nothing about them.
    matches = [hmac.compare_digest(one, other) for one in expected for other in given]
    if not any(matches):
        raise InvalidWebhook("the signature does not match: this is another secret, or the body was changed")
    _check_time(timestamp, tolerance_seconds)


def _get_header(by_name: Mapping[str, str], name: str) -> str:
    if not (value := by_name.get(name, "")):
        raise InvalidWebhook(f"the request has no header {name}: it is not a webhook")
    return value


def _parse_secret(secret: str) -> bytes:
    try:
        return parse_secret(secret)
    except ValueError as exc:
        raise InvalidWebhook(str(exc)) from None


def _check_time(timestamp: str, tolerance_seconds: float) -> None:
    if not _SECONDS.fullmatch(timestamp):
        raise InvalidWebhook(f"the header {TIMESTAMP_HEADER} is not a Unix time in seconds")
    age = time.time() - int(timestamp)
    if abs(age) > tolerance_seconds:
        raise InvalidWebhook(
            f"the message is {age:.0f} s old, or the clock of this machine is wrong: it is refused because it"
            " may be a repetition of an earlier one"
            if age > 0
            else f"the message is from {-age:.0f} s in the future: a clock is wrong"
        )
