"""SDK: `Fleet` is a client of a Meshfleet service over REST, `Mesh` of gateways over any MQTT broker.

`client.blocking` contains both classes for programs without an event loop. Errors are defined in
`meshfleet.errors`, request and response bodies in `meshfleet.rest`. `reports` contains the types of the
reports that `Mesh` receives.
"""

from meshfleet.client.arguments import Moment
from meshfleet.client.mesh.mesh import Mesh
from meshfleet.client.mesh.reports import Report
from meshfleet.client.rest.devices import Sort
from meshfleet.client.rest.fleet import Fleet
from meshfleet.client.rest.live_events import Event, EventData, EventType
from meshfleet.client.rest.samples import SampleKind
from meshfleet.client.rest.session import Session
from meshfleet.client.status import check
from meshfleet.protocol import reports
from meshfleet.protocol.codes import AccessType, AckType, Kind, Operation, Origin, Priority, Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.protocol.responses import ApiVersionResponse, ReadDecodedResponse, ReadResponse, Response
from meshfleet.rest.accounts import ApiKey, ApiKeyKind, AuditRow, IssuedApiKey, Me, Role, User
from meshfleet.rest.catalogue import Catalogue, CatalogueEntry, Product
from meshfleet.rest.devices import (
    Connectivity,
    ConnectivityChange,
    Device,
    DeviceDetail,
    Label,
    Live,
    Place,
    Summary,
)
from meshfleet.rest.firmware import Firmware
from meshfleet.rest.gateways import BatchGateway, Gateway, GatewayClaim
from meshfleet.rest.job_requests import Concurrency, Criterion, Gate, JobHealth, Rate, Retry, Timeouts, Wave
from meshfleet.rest.jobs import (
    DeviceUpdate,
    DryRun,
    Evidence,
    Execution,
    ExecutionDetail,
    ExecutionState,
    GatewayCounts,
    Job,
    JobState,
    JobSummary,
    JobWave,
    Outcome,
    ReasonCount,
    Refusal,
    Transition,
)
from meshfleet.rest.live import (
    DeletedJob,
    ForgottenDevice,
    LiveExecution,
    LiveGateway,
    LiveHeartbeat,
    LiveLink,
    LiveParentChange,
    LiveSample,
    ReleasedGateway,
    Resync,
)
from meshfleet.rest.operations import Health, Ready, Storage, StoragePart, StoragePartSize
from meshfleet.rest.requests import (
    GatewayCandidate,
    GatewayChoice,
    NewRequest,
    RequestAccepted,
    RequestOutcome,
    RequestRecord,
    RequestState,
)
from meshfleet.rest.sites import (
    BatchPlace,
    Floor,
    NewFloor,
    Plan,
    PlanTransform,
    ReferencePoint,
    Site,
    SitePlace,
    Zone,
)
from meshfleet.rest.telemetry import ExportedSample, Link, Links, Reject, Sample, SampleGap, Series
from meshfleet.rest.topology import (
    AlternativeParent,
    DevicePath,
    Hop,
    ParentChange,
    Topology,
    TopologyNode,
)

__all__ = [
    "AccessType",
    "AckType",
    "AlternativeParent",
    "ApiKey",
    "ApiKeyKind",
    "ApiVersionResponse",
    "AuditRow",
    "BatchGateway",
    "BatchPlace",
    "Catalogue",
    "CatalogueEntry",
    "Concurrency",
    "Connectivity",
    "ConnectivityChange",
    "Criterion",
    "DeletedJob",
    "Device",
    "DeviceDetail",
    "DevicePath",
    "DeviceUpdate",
    "DryRun",
    "Event",
    "EventData",
    "EventType",
    "Evidence",
    "Execution",
    "ExecutionDetail",
    "ExecutionState",
    "ExportedSample",
    "Firmware",
    "Fleet",
    "Floor",
    "ForgottenDevice",
    "Gate",
    "Gateway",
    "GatewayCandidate",
    "GatewayChoice",
    "GatewayClaim",
    "GatewayCounts",
    "Health",
    "Hop",
    "IssuedApiKey",
    "Job",
    "JobHealth",
    "JobState",
    "JobSummary",
    "JobWave",
    "Kind",
    "Label",
    "Link",
    "Links",
    "Live",
    "LiveExecution",
    "LiveGateway",
    "LiveHeartbeat",
    "LiveLink",
    "LiveParentChange",
    "LiveSample",
    "Me",
    "Mesh",
    "Moment",
    "NewFloor",
    "NewRequest",
    "Operation",
    "Origin",
    "Outcome",
    "ParentChange",
    "Place",
    "Plan",
    "PlanTransform",
    "Priority",
    "Product",
    "Rate",
    "ReadDecodedResponse",
    "ReadResponse",
    "Ready",
    "ReasonCount",
    "ReferencePoint",
    "Refusal",
    "Reject",
    "ReleasedGateway",
    "Report",
    "RequestAccepted",
    "RequestOutcome",
    "RequestRecord",
    "RequestState",
    "Response",
    "Resync",
    "Retry",
    "Role",
    "Sample",
    "SampleGap",
    "SampleKind",
    "Series",
    "Session",
    "Site",
    "SitePlace",
    "Sort",
    "Status",
    "Storage",
    "StoragePart",
    "StoragePartSize",
    "Summary",
    "Timeouts",
    "Topology",
    "TopologyNode",
    "Transition",
    "UpdateMethod",
    "User",
    "Wave",
    "Zone",
    "check",
    "reports",
]
