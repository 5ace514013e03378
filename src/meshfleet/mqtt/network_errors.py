"""Readable descriptions of network errors."""

from __future__ import annotations

import os
import re
import ssl


def describe_network_error(error: BaseException) -> str:
    """Return the reason of an error, without its number and without the place in OpenSSL."""
    match error:
        case ssl.SSLError(reason=str(reason)):
            return f"TLS failed, {reason.lower().replace('_', ' ')}"
        case OSError(errno=int(number)) if number > 0:  # asyncio's text for it is a tuple
            return os.strerror(number)
        case OSError(strerror=str(text)):
            return text
        # One error for several addresses.
        case OSError() if numbers := re.findall(r"\[Errno (\d+)\]", str(error)):
            return ", ".join(sorted({os.strerror(int(number)) for number in numbers}))
    return str(error)
