"""Programs of `bench.broker`, each in its own process so that its CPU time can be measured.

python -m bench.broker_programs push PORT CONNECTIONS COUNT
python -m bench.broker_programs pace PORT CONNECTIONS RATE SECONDS
python -m bench.broker_programs fan-out PORT SUBSCRIBERS COUNT QOS
python -m bench.broker_programs idle PORT CONNECTIONS
python -m bench.broker_programs storm PORT CONNECTIONS
python -m bench.broker_programs serve PORT
python -m bench.broker_programs serve-uvloop PORT

Clients print "ready", wait for a line, print one JSON object, and stay connected until standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import uvloop

from bench import broker_load, broker_server
from meshfleet.cli.file_limits import require_connections

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from bench.link_programs import Metrics

MAX_CONNECTIONS = 5_000

CLIENTS: dict[str, Callable[..., AbstractContextManager[Metrics]]] = {
    "push": broker_load.push,
    "pace": broker_load.pace,
    "fan-out": broker_load.fan_out,
    "idle": broker_load.idle,
    "storm": broker_load.storm,
}
SERVERS = {"serve": asyncio.run, "serve-uvloop": uvloop.run}


def main() -> None:
    """Run the program named by the first argument."""
    role, *arguments = sys.argv[1:]
    numbers = [int(each) for each in arguments]
    require_connections(MAX_CONNECTIONS)
    if role in SERVERS:
        SERVERS[role](broker_server.serve(*numbers))
        return
    with CLIENTS[role](*numbers) as metrics:
        print(json.dumps(metrics), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
