"""InfluxDB server of a test."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Self

import httpx

from tests.external_tools import INFLUXD, require
from tests.program_logs import register_log
from tests.servers import (
    NO_TRUSTED_AUTHORITIES,
    ServerAddress,
    free_port,
    start_program,
    wait_until_listening,
)

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

_TIMEOUT_SECONDS = 60.0

_CONFIG = """
reporting-disabled = true
bind-address = "127.0.0.1:{rpc_port}"
[meta]
  dir = "{directory}/meta"
[data]
  dir = "{directory}/data"
  wal-dir = "{directory}/wal"
  query-log-enabled = false
[monitor]
  store-enabled = false
[http]
  bind-address = "127.0.0.1:{port}"
  log-enabled = false
"""


class InfluxServer:
    """InfluxDB 1 with the database `meshfleet`, which can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.address = ServerAddress("127.0.0.1", free_port())
        self.url = f"http://127.0.0.1:{self.address.port}"
        self._log = register_log("influxd", directory / "influxd.log")
        config = directory / "influxdb.conf"
        config.write_text(_CONFIG.format(directory=directory, port=self.address.port, rpc_port=free_port()))
        self._command = [str(require(INFLUXD)), "-config", str(config)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        self.query("CREATE DATABASE meshfleet")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGTERM)

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        self._process = start_program(self._command, self._log)
        wait_until_listening(self._process, self.address, self._log)

    def stop(self, signal_number: signal.Signals) -> None:
        """Stop the server with a signal."""
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(_TIMEOUT_SECONDS)
            self._process = None

    def query(self, text: str) -> list[dict[str, Any]]:
        """Run a query, and return the series of its result."""
        response = httpx.post(
            f"{self.url}/query",
            params={"db": "meshfleet", "epoch": "ms"},
            data={"q": text},
            verify=NO_TRUSTED_AUTHORITIES,
            timeout=_TIMEOUT_SECONDS,
        )
        response.raise_for_status()
        (result,) = response.json()["results"]
        assert "error" not in result, result
        series: list[dict[str, Any]] = result.get("series", [])
        return series

    def read_points(self) -> list[dict[str, Any]]:
        """Return all points, with their tags and those fields that they have."""
        return [
            {name: value for name, value in zip(series["columns"], row, strict=True) if value is not None}
            for series in self.query("SELECT * FROM meshfleet")
            for row in series["values"]
        ]

    def count_values(self) -> int:
        """Count the values of all fields except `seq`: one for each sample."""
        return sum(
            count
            for series in self.query("SELECT count(*) FROM meshfleet")
            for (name, count) in zip(series["columns"], series["values"][0], strict=True)
            if name not in {"time", "count_seq"}
        )
