"""The whole document, AsyncAPI 3.0 (rest-162)."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from meshfleet.service.asyncapi.channels import all_channels
from meshfleet.service.asyncapi.messages import CORRELATION, all_messages
from meshfleet.service.asyncapi.operations import all_operations
from meshfleet.service.asyncapi.parameters import all_parameters
from meshfleet.service.asyncapi.servers import ACCOUNT, SOMEWHERE
from meshfleet.wire.gating import ASSUMED, NEWEST
from meshfleet.wire.payload import MAX_PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.service.asyncapi.servers import Server

_ABOUT: Final = f"""\
Fleets of BLE-mesh devices behind MQTT gateways: what gateways report, are asked, and answer.

**Whose side.** Operations are told from the side of the service: it *receives* reports and *sends* requests,
whose responses are their replies. People and programs with an account stand on the same side, each as far as
its role goes. Gateways stand on the other side and do the opposite.

**MQTT.** Version 3.1.1, QoS 1, nothing retained. Payloads are JSON objects in UTF-8 of at most
{MAX_PAYLOAD} bytes. The schemas tell what is sent; what readers tolerate beyond that is in the descriptions.
Ignore fields that you do not know: later versions may bring more.

**Versions.** Gateways speak {ASSUMED} to {NEWEST}, which `apiversion` tells. `x-since` is the version that
brought a field or an operation; what has none has always been there.

**Who may do what.** A gateway logs in with its MAC as user name and as client id, a person with name and
password, a program as `apikey` with its API key. `x-access` of a channel tells who may publish there and who
may read. A forbidden publish ends the connection, a forbidden subscription is refused with 0x80. All this is
so on the embedded broker; another one has rules of its own.
"""

_TAGS: Final = {
    "reports": "What gateways publish of devices, and of themselves.",
    "requests": "What gateways are asked, one or all of them.",
    "responses": "What gateways answer.",
    "diagnostics": "How gateways get firmware images. No topic prefix is in front of these topics.",
}


def describe(servers: Iterable[Server] = SOMEWHERE, prefix: str = "") -> dict[str, Any]:
    """Describe the messaging interface; whoever gets the document must leave it as it is."""
    return _without_servers(prefix) | {"servers": {each.name: each.described() for each in servers}}


@cache
def _without_servers(prefix: str) -> dict[str, Any]:
    """Make all that is the same however a service is reached; a process has one prefix."""
    found = list(all_messages())
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Meshfleet messaging",
            "version": version("meshfleet"),
            "description": _ABOUT,
            "license": {"name": "Apache-2.0"},
            "tags": [{"name": name, "description": about} for name, about in _TAGS.items()],
        },
        "defaultContentType": "application/json",
        "servers": {},
        "channels": {each.name: each.described(prefix) for each in all_channels(prefix)},
        "operations": all_operations(prefix),
        "components": {
            "schemas": {name: schema for each in found for name, schema in each.schemas.items()},
            "messages": {each.name: each.described() for each in found},
            "parameters": all_parameters(),
            "correlationIds": {
                CORRELATION: {
                    "location": "$message.payload#/id",
                    "description": "The `id` of a request, which its response repeats.",
                }
            },
            "securitySchemes": {
                ACCOUNT: {
                    "type": "userPassword",
                    "description": "Of a gateway its MAC and password, of a person name and password, "
                    "of a program `apikey` and an API key.",
                }
            },
        },
    }
