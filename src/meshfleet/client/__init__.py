"""The SDK: programs talk to a Meshfleet service over REST, and to gateways over any MQTT broker.

fleet           a service, all of it: what follows are its rooms
devices         fleet.devices
labels          fleet.labels
gateways        fleet.gateways
samples         fleet.samples
requests        fleet.requests
people          fleet.users, fleet.api_keys, fleet.audit
live            fleet.live: events as they happen; `events` tells what they are
operations      fleet.operations

desk            asks as who we are
session         logging in, and staying in
transport       HTTP: one question, one answer
retries         whether and when to ask once more
problems        from an answer that is none to an error
calls           questions and answers as values
pages           lists, page by page
lines           streams, line by line
address         where a service is
names           devices, identifiers and times as callers name them

mesh            gateways over a broker: requests, reports, acks
mesh_requests   what is asked of them
asking          requests on their way, and the answers that come back
asking_waiting  who waits for which answer
reports         what gateways report, one after the other

checking        answers that say no, as errors
blocking        the same for programs without an event loop

The errors are those of `meshfleet.errors`; the bodies are those of `meshfleet.wire.rest`.
"""

from meshfleet.client.checking import check
from meshfleet.client.events import Event
from meshfleet.client.fleet import Fleet
from meshfleet.client.mesh import Mesh
from meshfleet.client.reports import Report
from meshfleet.client.session import Session
from meshfleet.wire.codes import AccessType, AckType, Kind, Operation, Origin, Priority, Status
from meshfleet.wire.rest import (
    ApiKey,
    AuditRow,
    Connectivity,
    ConnectivityChange,
    Device,
    DeviceDetail,
    ForgottenDevice,
    Gateway,
    GatewayClaim,
    Hole,
    IssuedApiKey,
    Label,
    Live,
    LiveGateway,
    LiveHeartbeat,
    LiveLink,
    LiveSample,
    Me,
    NewRequest,
    Reject,
    ReleasedGateway,
    RequestAccepted,
    RequestAnswer,
    RequestRecord,
    RequestState,
    Resync,
    Role,
    Sample,
    Series,
    Summary,
    User,
)

__all__ = [
    "AccessType",
    "AckType",
    "ApiKey",
    "AuditRow",
    "Connectivity",
    "ConnectivityChange",
    "Device",
    "DeviceDetail",
    "Event",
    "Fleet",
    "ForgottenDevice",
    "Gateway",
    "GatewayClaim",
    "Hole",
    "IssuedApiKey",
    "Kind",
    "Label",
    "Live",
    "LiveGateway",
    "LiveHeartbeat",
    "LiveLink",
    "LiveSample",
    "Me",
    "Mesh",
    "NewRequest",
    "Operation",
    "Origin",
    "Priority",
    "Reject",
    "ReleasedGateway",
    "Report",
    "RequestAccepted",
    "RequestAnswer",
    "RequestRecord",
    "RequestState",
    "Resync",
    "Role",
    "Sample",
    "Series",
    "Session",
    "Status",
    "Summary",
    "User",
    "check",
]
