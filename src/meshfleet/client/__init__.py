"""The SDK: programs talk to a Meshfleet service over REST, and to gateways over any MQTT broker.

rest            `Fleet`: a service over REST
mesh            `Mesh`: gateways over a broker
names           devices, identifiers and times as callers name them
checking        answers that say no, as errors
blocking        the same for programs without an event loop

The errors are those of `meshfleet.errors`; the bodies are those of `meshfleet.wire.rest`.
"""

from meshfleet.client.checking import check
from meshfleet.client.mesh.mesh import Mesh
from meshfleet.client.mesh.reports import Report
from meshfleet.client.rest.events import Event
from meshfleet.client.rest.fleet import Fleet
from meshfleet.client.rest.session import Session
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
