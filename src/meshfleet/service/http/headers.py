"""Headers that keep browsers from doing what nobody wants."""

from __future__ import annotations

from typing import Final

SAFE: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""On every answer that does not say otherwise itself."""

TRANSPORT_SECURITY: Final = "max-age=31536000"
"""On every answer over TLS."""
