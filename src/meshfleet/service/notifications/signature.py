"""Signatures of webhooks by Standard Webhooks 1.0: receivers check by them who sent a message."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Final

from meshfleet.rest.webhooks import (
    DIGEST,
    ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    build_signed_content,
    format_secret,
    format_signature,
    parse_secret,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEY_BYTES: Final = 32


def create_secret() -> str:
    """Return a new random secret."""
    return format_secret(secrets.token_bytes(_KEY_BYTES))


def build_headers(
    message_id: str, body: bytes, signing_secrets: Iterable[str], *, timestamp: int
) -> dict[str, str]:
    """Return the headers that sign a body, with a signature for each secret.

    `timestamp` is the time of the attempt as Unix time in seconds. Without a secret there is no signature.
    """
    content = build_signed_content(message_id, str(timestamp), body)
    signatures = [
        format_signature(hmac.digest(parse_secret(each), content, DIGEST)) for each in signing_secrets
    ]
    headers = {ID_HEADER: message_id, TIMESTAMP_HEADER: str(timestamp)}
    return {**headers, SIGNATURE_HEADER: " ".join(signatures)} if signatures else headers
