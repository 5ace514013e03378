"""Test of the device counts of the console, with a service that does not respond to the first requests."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.external_tools import NodePackage, require
from tests.node import NODE

CONSOLE = Path(__file__).parents[2] / "console"

PROGRAM = """
import { createServer } from "vite";

globalThis.addEventListener = () => undefined;
globalThis.document = { addEventListener, hidden: false };
globalThis.Request = class extends Request {
  constructor(path, options) {
    super(new URL(path, "http://localhost"), options);
  }
};
let isReachable = false;
let requests = 0;
globalThis.fetch = async () => {
  requests += 1;
  if (!isReachable) throw new TypeError("connection refused");
  return Response.json({ total: 7, exact: true });
};

const vite = await createServer({
  appType: "custom",
  logLevel: "error",
  optimizeDeps: { noDiscovery: true },
  server: { middlewareMode: true, ws: false, watch: null },
});
const { DeviceCounts } = await vite.ssrLoadModule("/src/filtering/device-counts.svelte.ts");
const { runRetries } = await vite.ssrLoadModule("/src/api/reconnect-retries.ts");
const filter = { ModelNumber: "BT-1" };

async function startFailing() {
  const counts = new DeviceCounts();
  counts.start([filter]);
  while (counts.problem === null) await new Promise(setImmediate);
  return counts;
}
const counts = await startFailing();
const stopped = await startFailing();
stopped.stop();
isReachable = true;
runRetries();
// The timer of the next regular count never fires earlier than this.
const end = performance.now() + 5000;
while (counts.get(filter) === null && performance.now() < end) await new Promise(setImmediate);
console.log(JSON.stringify({ problem: counts.problem, total: counts.get(filter)?.total ?? null, requests }));
process.exit();
"""


def test_failed_counts_are_repeated_when_the_service_is_reachable_again() -> None:
    require(NodePackage("vite", CONSOLE, installer="scripts/build_console.py"))
    result = subprocess.run(
        [NODE, "--input-type=module", "--eval", PROGRAM],
        cwd=CONSOLE,
        check=True,
        capture_output=True,
        text=True,
    )
    # Two requests failed, and only the counts that were not stopped are requested again.
    assert json.loads(result.stdout) == {"problem": None, "total": 7, "requests": 3}
