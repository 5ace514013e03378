"""HTTP response that sends bytes while they are read from the database or a file."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from litestar.response.base import ASGIResponse

from meshfleet.errors import FleetError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from litestar.types import Receive, Scope, Send

_log = logging.getLogger(__name__)

_SEND_BYTES: Final = 64 * 1024
"""Maximum bytes per ASGI message: slow HTTP clients must receive a message within the send timeout."""


def _ignore_sent(_size: int) -> None:
    """Do nothing: default of responses whose bytes are not counted."""


class BinaryResponse(ASGIResponse):
    """HTTP response that reads its body while sending it. If the first read fails, nothing is sent."""

    def __init__(  # noqa: PLR0913 # keyword-only
        self,
        pieces: AsyncGenerator[bytes],
        *,
        size: int,
        media_type: str,
        headers: Mapping[str, str],
        status_code: int = 200,
        on_sent: Callable[[int], None] = _ignore_sent,
    ) -> None:
        """Create a response of `size` bytes. `on_sent` is called with the length of each sent message."""
        super().__init__(
            content_length=size, headers=dict(headers), media_type=media_type, status_code=status_code
        )
        self._pieces = pieces
        self._on_sent = on_sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the body; stop if the HTTP client disconnects."""
        state: dict[str, Any] = scope["state"]
        async with aclosing(self._pieces) as pieces:
            first = await anext(pieces)
            await self.start_response(send)
            if state.get("only_head"):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
            try:
                await self._send_piece(first, send)
                async for piece in pieces:
                    if disconnect.done():
                        return
                    await self._send_piece(piece, send)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            except (OSError, RuntimeError):  # raised by ASGI and uvloop if the client has disconnected
                return
            except FleetError as exc:
                # Part of the body was sent: the client can only notice that the response is too short.
                _log.error("sending a file failed: %s", exc)
                state["abort"]()
            finally:
                disconnect.cancel()

    async def _send_piece(self, piece: bytes, send: Send) -> None:
        """Send part of the body in ASGI messages of limited size."""
        for start in range(0, len(piece), _SEND_BYTES):
            body = piece[start : start + _SEND_BYTES]
            await send({"type": "http.response.body", "body": body, "more_body": True})
            self._on_sent(len(body))


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
