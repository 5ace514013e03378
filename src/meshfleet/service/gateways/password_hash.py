"""Password hashes of gateways in the format of an external broker."""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Final

_ROUNDS: Final = 101
"""Iterations; the number that mosquitto_passwd uses.

Few are enough: the passwords are 256 random bits and cannot be guessed, and thousands of gateways that
reconnect at once must not wait for each other.
"""
_SALT_BYTES: Final = 12
_HASH_BYTES: Final = 64
"""Bytes of salt and hash."""


def hash_mosquitto_password(password: str) -> str:
    """Hash a generated password in the format of mosquitto: PBKDF2 with SHA-512."""
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ROUNDS, _HASH_BYTES)
    return f"$7${_ROUNDS}${_to_base64(salt)}${_to_base64(digest)}"


def _to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
