"""The SDK: programs talk to a Meshfleet service over REST, and to gateways over any MQTT broker.

rest            `Fleet`: a service over REST
mesh            `Mesh`: gateways over a broker
names           devices, identifiers and times as callers name them
values          what callers write
checking        answers that say no, as errors
blocking        the same for programs without an event loop

The errors are those of `meshfleet.errors`; the bodies are those of `meshfleet.wire.rest`. `reports` has what
reports over MQTT hold, kind by kind.
"""

from meshfleet.client.checking import check
from meshfleet.client.mesh.mesh import Mesh
from meshfleet.client.mesh.reports import Report
from meshfleet.client.names import Moment
from meshfleet.client.rest.devices import Sort
from meshfleet.client.rest.events import Event, EventData, EventType
from meshfleet.client.rest.fleet import Fleet
from meshfleet.client.rest.samples import SampleKind
from meshfleet.client.rest.session import Session
from meshfleet.wire import reports
from meshfleet.wire.codes import AccessType, AckType, Kind, Operation, Origin, Priority, Status
from meshfleet.wire.responses import ApiVersionResponse, ReadDecodedResponse, ReadResponse, Response
from meshfleet.wire.rest import (
    ApiKey,
    AuditRow,
    Connectivity,
    ConnectivityChange,
    Device,
    DeviceDetail,
    ForgottenDevice,
    Gateway,
    GatewayCandidate,
    GatewayChoice,
    GatewayClaim,
    Health,
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
    "ApiVersionResponse",
    "AuditRow",
    "Connectivity",
    "ConnectivityChange",
    "Device",
    "DeviceDetail",
    "Event",
    "EventData",
    "EventType",
    "Fleet",
    "ForgottenDevice",
    "Gateway",
    "GatewayCandidate",
    "GatewayChoice",
    "GatewayClaim",
    "Health",
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
    "Moment",
    "NewRequest",
    "Operation",
    "Origin",
    "Priority",
    "ReadDecodedResponse",
    "ReadResponse",
    "Reject",
    "ReleasedGateway",
    "Report",
    "RequestAccepted",
    "RequestAnswer",
    "RequestRecord",
    "RequestState",
    "Response",
    "Resync",
    "Role",
    "Sample",
    "SampleKind",
    "Series",
    "Session",
    "Sort",
    "Status",
    "Summary",
    "User",
    "check",
    "reports",
]
