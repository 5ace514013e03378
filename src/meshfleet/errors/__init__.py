"""Every error that Meshfleet raises on purpose.

    FleetError
    ├── WireError                 something on the wire breaks the protocol; names the field and the reason
    │   ├── MalformedId
    │   │   ├── MalformedMac
    │   │   ├── MalformedDeviceId
    │   │   ├── MalformedIdentifier
    │   │   ├── MalformedModelNumber
    │   │   └── MalformedVersion
    │   ├── MalformedTime
    │   ├── MalformedHex
    │   ├── MalformedText         a name or label that cannot be one
    │   ├── MalformedTopic
    │   ├── MalformedPacket       bytes that are no MQTT packet, or a packet that may not be sent
    │   │   ├── PacketTooLarge
    │   │   └── UnsupportedProtocol
    │   ├── MalformedPayload
    │   │   └── PayloadTooLarge
    │   ├── UnknownIdentifier     not in the catalogue, or there without a known layout
    │   ├── UndecodableValue      raw bytes that do not fit the identifier's layout
    │   ├── UnencodableValue      a JSON value that does not fit the identifier's layout
    │   ├── MalformedImage        firmware that is broken
    │   ├── UnclaimedGateway      a gateway speaks that nobody claimed
    │   ├── UnstorableReport      the database does not take it
    │   └── MalformedAddress      a broker's or service's URL that cannot be used
    ├── LinkError                 the connection to a broker
    │   ├── BrokerUnreachable     nobody answers there
    │   ├── UntrustedBroker       somebody answers, whose certificate does not hold
    │   ├── ConnectionRefused     the broker does not let us in, and says why
    │   ├── ConnectionLost
    │   ├── SubscriptionRefused   the broker grants less than was asked
    │   ├── LinkClosed            by ourselves
    │   └── Undelivered           closed before the broker acknowledged everything
    ├── ImageUnavailable          nobody gives us the firmware image; another try may help
    ├── ImageBroken               we got it, and it is not what was promised, or no image at all
    ├── ServiceUnreachable        nobody answers there over REST; another try may help
    ├── ServiceRefused            the service does not do what we ask over REST, or is none
    ├── UnusableCertificate       a file with certificates or a key that cannot be read
    ├── GatewayTooOld             an operation or parameter that the gateway's version does not have
    ├── MalformedCatalogue        an identifier table with mistakes; names each line
    ├── MalformedSite             a site file with mistakes; names each place
    ├── UnreadableMemory          what emulated devices kept cannot be given back to them
    ├── Refused                   the service does not do what it was asked for
    │   ├── InvalidRequest        names each field that is wrong
    │   │   └── ImageCheckFailed  a firmware image that an admin may still accept
    │   ├── InvalidToken          for the next page: not ours, or of other filters
    │   ├── NotLoggedIn
    │   ├── WrongCredentials
    │   ├── NotAllowed            the role does not allow it
    │   ├── NotFound
    │   ├── Conflict              with what is there already
    │   │   ├── AlreadyExists
    │   │   ├── InUse             something else needs it
    │   │   ├── KeyReused         an idempotency key, for another request
    │   │   ├── NoBroker          nowhere to send gateways to
    │   │   ├── NotReleased       firmware that is not for devices
    │   │   ├── LastAdmin
    │   │   └── StillClaimed
    │   ├── TooSlow
    │   ├── WentAway
    │   ├── BodyTooLarge
    │   ├── UnsupportedMediaType
    │   ├── RangeNotSatisfiable   of an image, behind its end
    │   ├── TooManyAttempts       says when to try again
    │   │   └── TooManyListeners  to live events
    │   └── TooManySubscriptions  of one listener
    ├── Unavailable               what the service stands on is missing; another try may help
    │   ├── DatabaseUnavailable
    │   └── ImagesUnavailable     the disk may be full
    ├── Unanswered                a request to a gateway that brought no response
    │   ├── NoGateway             hears the device            ┐
    │   ├── GatewayOffline        not connected               │
    │   ├── GatewayBusy           with those before us        │ nothing was sent
    │   ├── TooManyRequests       wait for their answers      │
    │   ├── Unrecorded            the history is not written  │
    │   ├── BrokerUnavailable     nobody carries requests     ┘
    │   ├── GatewayTimeout        no answer in time           ┐
    │   ├── GatewayLost           it went away                │ it may have been carried out
    │   ├── MalformedResponse     nobody can read it          │
    │   └── Interrupted           by the service itself       ┘
    ├── Declined                  a response with a status that says no
    ├── SamplesDamaged            a file with samples is not as it was written
    ├── ImageDamaged              an image of firmware is not as it was written, or gone
    ├── UnusableDatabase          too old, too new, or without what we need
    ├── UnusableAddress           nobody can listen there
    ├── UnusableFolder            the data directory is not ours, or in use
    └── WrongSettings             names each setting that is wrong

`code` is stable and part of the interface; the text is for people and may change. `http` is the status of the
REST answer when the error reaches it; at the other end `told.error_of` makes the same error of that answer.
"""

from __future__ import annotations

from meshfleet.errors.client import ServiceRefused, ServiceUnreachable
from meshfleet.errors.gateway import (
    ImageBroken,
    ImageUnavailable,
    MalformedSite,
    UnreadableMemory,
)
from meshfleet.errors.link import (
    BrokerUnreachable,
    ConnectionLost,
    ConnectionRefused,
    LinkClosed,
    LinkError,
    SubscriptionRefused,
    Undelivered,
    UntrustedBroker,
    UnusableCertificate,
)
from meshfleet.errors.readiness import ReadinessCode, Trouble
from meshfleet.errors.requests import (
    BrokerUnavailable,
    Declined,
    GatewayBusy,
    GatewayLost,
    GatewayOffline,
    GatewayTimeout,
    Interrupted,
    KeyReused,
    MalformedResponse,
    NoGateway,
    TooManyRequests,
    Unanswered,
    Unrecorded,
)
from meshfleet.errors.root import (
    Fault,
    FleetError,
    Told,
    path,
    plain,
    shown,
)
from meshfleet.errors.service import (
    AlreadyExists,
    BodyTooLarge,
    Conflict,
    DatabaseUnavailable,
    ImageCheckFailed,
    ImageDamaged,
    ImagesUnavailable,
    InUse,
    InvalidRequest,
    InvalidToken,
    LastAdmin,
    NoBroker,
    NotAllowed,
    NotFound,
    NotLoggedIn,
    NotReleased,
    RangeNotSatisfiable,
    Refused,
    SamplesDamaged,
    StillClaimed,
    TooManyAttempts,
    TooManyListeners,
    TooManySubscriptions,
    TooSlow,
    Unavailable,
    UnsupportedMediaType,
    UnusableAddress,
    UnusableDatabase,
    UnusableFolder,
    WentAway,
    WrongCredentials,
    WrongSettings,
)
from meshfleet.errors.wire import (
    GatewayTooOld,
    MalformedAddress,
    MalformedCatalogue,
    MalformedDeviceId,
    MalformedHex,
    MalformedId,
    MalformedIdentifier,
    MalformedImage,
    MalformedMac,
    MalformedModelNumber,
    MalformedPacket,
    MalformedPayload,
    MalformedText,
    MalformedTime,
    MalformedTopic,
    MalformedVersion,
    Mistake,
    PacketTooLarge,
    PayloadTooLarge,
    UnclaimedGateway,
    UndecodableValue,
    UnencodableValue,
    UnknownIdentifier,
    UnstorableReport,
    UnsupportedProtocol,
    WireError,
)

__all__ = [
    "AlreadyExists",
    "BodyTooLarge",
    "BrokerUnavailable",
    "BrokerUnreachable",
    "Conflict",
    "ConnectionLost",
    "ConnectionRefused",
    "DatabaseUnavailable",
    "Declined",
    "Fault",
    "FleetError",
    "GatewayBusy",
    "GatewayLost",
    "GatewayOffline",
    "GatewayTimeout",
    "GatewayTooOld",
    "ImageBroken",
    "ImageCheckFailed",
    "ImageDamaged",
    "ImageUnavailable",
    "ImagesUnavailable",
    "InUse",
    "Interrupted",
    "InvalidRequest",
    "InvalidToken",
    "KeyReused",
    "LastAdmin",
    "LinkClosed",
    "LinkError",
    "MalformedAddress",
    "MalformedCatalogue",
    "MalformedDeviceId",
    "MalformedHex",
    "MalformedId",
    "MalformedIdentifier",
    "MalformedImage",
    "MalformedMac",
    "MalformedModelNumber",
    "MalformedPacket",
    "MalformedPayload",
    "MalformedResponse",
    "MalformedSite",
    "MalformedText",
    "MalformedTime",
    "MalformedTopic",
    "MalformedVersion",
    "Mistake",
    "NoBroker",
    "NoGateway",
    "NotAllowed",
    "NotFound",
    "NotLoggedIn",
    "NotReleased",
    "PacketTooLarge",
    "PayloadTooLarge",
    "RangeNotSatisfiable",
    "ReadinessCode",
    "Refused",
    "SamplesDamaged",
    "ServiceRefused",
    "ServiceUnreachable",
    "StillClaimed",
    "SubscriptionRefused",
    "Told",
    "TooManyAttempts",
    "TooManyListeners",
    "TooManyRequests",
    "TooManySubscriptions",
    "TooSlow",
    "Trouble",
    "Unanswered",
    "Unavailable",
    "UnclaimedGateway",
    "UndecodableValue",
    "Undelivered",
    "UnencodableValue",
    "UnknownIdentifier",
    "UnreadableMemory",
    "Unrecorded",
    "UnstorableReport",
    "UnsupportedMediaType",
    "UnsupportedProtocol",
    "UntrustedBroker",
    "UnusableAddress",
    "UnusableCertificate",
    "UnusableDatabase",
    "UnusableFolder",
    "WentAway",
    "WireError",
    "WrongCredentials",
    "WrongSettings",
    "path",
    "plain",
    "shown",
]
