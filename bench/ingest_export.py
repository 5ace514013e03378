"""Export of all samples over REST, again and again, beside the load of `bench.ingest`."""

from __future__ import annotations

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from bench.api_client import Client
from bench.ingest_verification import ADMIN_PASSWORD
from meshfleet.protocol.times import format_millis

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_BYTES: Final = 1 << 16
_TIMEOUT: Final = 60.0


class Exporter:
    """HTTP client that repeats an export, and counts what it receives."""

    def __init__(self, url: str, *, until: int) -> None:
        """Export samples up to the time `until`, in milliseconds: those of the load do not prolong it."""
        self.line_count = 0
        self._address = urlsplit(url)
        with Client(url) as client:
            self._headers = {"Authorization": f"Bearer {client.log_in(ADMIN_PASSWORD)}"}
        self._path = f"/api/v1/samples/export?Format=csv&To={format_millis(until)}"
        self._is_stopped = threading.Event()

    @contextmanager
    def run(self) -> Iterator[None]:
        """Repeat the export in a thread during the context. Raise an error if an export fails or is empty."""
        with ThreadPoolExecutor(1) as pool:
            exporting = pool.submit(self._repeat)
            try:
                yield
            finally:
                self._is_stopped.set()
            exporting.result()

    def _repeat(self) -> None:
        while not self._is_stopped.is_set():
            connection = http.client.HTTPConnection(self._address.netloc, timeout=_TIMEOUT)
            connection.request("GET", self._path, headers=self._headers)
            response = connection.getresponse()
            lines_before = self.line_count
            while not self._is_stopped.is_set() and (chunk := response.read(_CHUNK_BYTES)):
                self.line_count += chunk.count(b"\n")
            is_empty = self.line_count == lines_before and not self._is_stopped.is_set()
            if response.status != http.HTTPStatus.OK or is_empty:
                raise RuntimeError(f"an export has failed, or is empty: HTTP status {response.status}")
            connection.close()
