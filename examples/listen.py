"""Print and acknowledge messages of a broker: all reports, or those that match another topic filter.

python examples/listen.py mqtt://user:password@127.0.0.1:1883 ['mt/gateway/+/device/#']
"""

from __future__ import annotations

import os
import sys
from uuid import uuid4

from meshfleet.errors import FleetError
from meshfleet.errors.mqtt import SubscriptionRefused
from meshfleet.mqtt.client import BrokerAddress, MqttClient, run_program

REPORTS = "mt/gateway/+/device/#"


async def listen(url: str, topic_filter: str = REPORTS) -> None:
    """Print every message on its own line, until interrupted."""
    async with MqttClient(BrokerAddress.parse(url), client_id=f"listen-{uuid4()}", clean=True) as link:
        await link.subscribe(topic_filter)
        async for batch in link:
            for message in batch.messages:
                print(message.topic, message.payload.decode(errors="backslashreplace"), flush=True)
            batch.acknowledge()


if __name__ == "__main__":
    if len(sys.argv) not in {2, 3}:  # program, broker, optional filter
        sys.exit(__doc__)
    try:
        run_program(listen(*sys.argv[1:]))
    except SubscriptionRefused as refused:
        sys.exit(f"The broker refused the filter {', '.join(refused.filters)}. Reports are at {REPORTS}")
    except FleetError as problem:
        sys.exit(f"{problem}")
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # the next program in the pipe has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
