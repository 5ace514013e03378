"""Show what a broker passes on, and acknowledge it.

python examples/listen.py mqtt://127.0.0.1:1883 'mt/#'
"""

from __future__ import annotations

import os
import sys
from uuid import uuid4

from meshfleet.errors import FleetError
from meshfleet.link import Address, Link, run


async def listen(url: str, wanted: str) -> None:
    """Print every message on a line of its own, until interrupted."""
    async with Link(Address.parse(url), client_id=f"listen-{uuid4()}", clean=True) as link:
        await link.subscribe(wanted)
        async for batch in link:
            for message in batch.messages:
                print(message.topic, message.payload.decode(errors="backslashreplace"), flush=True)
            batch.acknowledge()


if __name__ == "__main__":
    if len(sys.argv) != 3:  # noqa: PLR2004 # program, broker, filter
        sys.exit(__doc__)
    try:
        run(listen(sys.argv[1], sys.argv[2]))
    except FleetError as problem:
        sys.exit(f"{problem}")
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # the next program in the pipe has ended, and so do we
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
