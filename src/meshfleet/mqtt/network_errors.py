"""Readable descriptions of network errors."""

from __future__ import annotations

import os
import re
import ssl


def describe_network_error(error: BaseException) -> str:
    """Describe a network error in words, without its errno and without OpenSSL's source line."""
    match error:
        case ssl.SSLError(reason=str(reason)):
            return f"TLS failed, {reason.lower().replace('_', ' ')}"
        case OSError(errno=int(number)) if number > 0:  # asyncio's text contains the address as a tuple
            return os.strerror(number)
        case OSError(strerror=str(text)):
            return text
        # asyncio joins the errors of several addresses into one.
        case OSError() if numbers := re.findall(r"\[Errno (\d+)\]", str(error)):
            return ", ".join(sorted({os.strerror(int(number)) for number in numbers}))
    return str(error)
