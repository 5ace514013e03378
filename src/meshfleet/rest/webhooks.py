"""Signatures of webhooks by Standard Webhooks 1.0: parts that the service and receivers share (rest-277).

The signature is `v1,` and the Base64 of the HMAC-SHA256 of id, timestamp and body with the key in the secret.
"""

from __future__ import annotations

import binascii
from typing import Final

ID_HEADER: Final = "webhook-id"
"""Header with the id of the message: the same in each attempt to deliver it."""
TIMESTAMP_HEADER: Final = "webhook-timestamp"
"""Header with the time of the attempt, as Unix time in seconds."""
SIGNATURE_HEADER: Final = "webhook-signature"
"""Header with one or more signatures, separated by spaces: during the change of a secret, one with each."""

DIGEST: Final = "sha256"
"""Hash function of the HMAC."""

_PREFIX: Final = "whsec_"


def format_secret(key: bytes) -> str:
    """Format a key as a secret, such as `whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw`."""
    return _PREFIX + binascii.b2a_base64(key, newline=False).decode()


def parse_secret(secret: str) -> bytes:
    """Return the key in a secret. Raise `ValueError`, which does not quote it, for another text."""
    text = secret.removeprefix(_PREFIX)
    try:
        key = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError:
        key = b""
    if not key or text == secret:
        raise ValueError(f"the secret is not {_PREFIX} followed by Base64")
    return key


def build_signed_content(message_id: str, timestamp: str, body: bytes) -> bytes:
    """Return the bytes that a signature is for."""
    return f"{message_id}.{timestamp}.".encode("utf-8", "replace") + body


def format_signature(digest: bytes) -> str:
    """Format the HMAC of a message as a signature."""
    return "v1," + binascii.b2a_base64(digest, newline=False).decode()
