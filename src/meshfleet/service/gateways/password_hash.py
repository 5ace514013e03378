"""Hashes MQTT passwords of gateways in the format of mosquitto, for an external broker."""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Final

_ROUNDS: Final = 101
"""Number of PBKDF2 iterations, as in mosquitto_passwd.

Few iterations are enough, because the passwords are 256 random bits and cannot be guessed. More would slow
down the broker when thousands of gateways reconnect at once.
"""
_SALT_BYTES: Final = 12
"""Length of the salt of a password hash in bytes."""
_HASH_BYTES: Final = 64
"""Length of a password hash in bytes."""


def hash_mosquitto_password(password: str) -> str:
    """Hash a generated password in the format of mosquitto: PBKDF2 with SHA-512."""
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ROUNDS, _HASH_BYTES)
    return f"$7${_ROUNDS}${_to_base64(salt)}${_to_base64(digest)}"


def _to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
