"""Show what a broker passes on, and acknowledge it.

python examples/listen.py mqtt://127.0.0.1:1883 'mt/#'
"""

from __future__ import annotations

import sys

from meshfleet.errors import FleetError
from meshfleet.link import Address, Link, run


async def listen(url: str, wanted: str) -> None:
    """Print every message on a line of its own, until interrupted."""
    async with Link(Address.parse(url), client_id="meshfleet-listen", clean=True) as link:
        await link.subscribe(wanted)
        async for batch in link:
            for message in batch.messages:
                print(message.topic, message.payload.decode(errors="backslashreplace"), flush=True)
            batch.acknowledge()


if __name__ == "__main__":
    try:
        run(listen(*sys.argv[1:]))
    except FleetError as problem:
        sys.exit(f"{problem}")
    except KeyboardInterrupt:
        pass
