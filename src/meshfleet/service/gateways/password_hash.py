"""Passwords of gateways as another broker checks them."""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Final

_ROUNDS: Final = 101
"""What mosquitto_passwd takes. Few are enough: what is hashed is 256 random bits, which nobody guesses, and
thousands of gateways that come back at once must not wait for each other."""
_SALT_BYTES: Final = 12
_HASH_BYTES: Final = 64
"""Bytes."""


def hash_mosquitto_password(password: str) -> str:
    """A password of ours as mosquitto checks it: PBKDF2 with SHA-512."""
    salt = secrets.token_bytes(_SALT_BYTES)
    made = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ROUNDS, _HASH_BYTES)
    return f"$7${_ROUNDS}${_to_base64(salt)}${_to_base64(made)}"


def _to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
