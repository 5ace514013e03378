"""The filters of the list of devices, as they stand in a query (rest-34 to rest-37)."""

from collections.abc import Callable
from typing import Annotated, Final, TypeVar

from litestar.params import QueryParameter

from meshfleet.errors import Fault, InvalidRequest, MalformedText, WireError
from meshfleet.service.devices.model import Filter, Order, Sort
from meshfleet.service.devices.paths import parse_gateway
from meshfleet.wire.ids import Version, mac_of, parse_device_id, parse_model_number
from meshfleet.wire.rest import parse_label, parse_name_part

Value = TypeVar("Value")

_LABELS: Final = 20
"""Each label of a filter is another question to the database."""

_SORTS: Final = {sign + sort: Order(sort, reverse=bool(sign)) for sort in Sort for sign in ("", "-")}

Connected = Annotated[
    str | None,
    QueryParameter(
        name="Connected",
        description="Is connected, or is not.",
        schema_extra={"type": "boolean"},
    ),
]
SortText = Annotated[
    str | None,
    QueryParameter(
        name="Sort",
        description="What decides the order, `id` unless set; a `-` in front reverses it.",
        schema_extra={"type": "string", "enum": list(_SORTS)},
    ),
]
Include = Annotated[
    str | None,
    QueryParameter(
        name="Include",
        description="`live` adds what changes with reports.",
        schema_extra={"type": "string", "enum": ["live"]},
    ),
]


def choose(
    label: Annotated[
        list[str] | None,
        QueryParameter(
            name="Label", description="Has this label; may be given several times, then has them all."
        ),
    ] = None,
    connected: Connected = None,
    model_number: Annotated[
        str | None, QueryParameter(name="ModelNumber", description="Four hex digits, such as `000F`.")
    ] = None,
    firmware_version: Annotated[
        str | None,
        QueryParameter(
            name="FirmwareVersion", description="Such as `2.4.1`, betas included, or `2.4.1-beta.3`."
        ),
    ] = None,
    hardware_version: Annotated[
        str | None, QueryParameter(name="HardwareVersion", description="Such as `1.0` or `1.0.0`.")
    ] = None,
    friendly_name: Annotated[
        str | None,
        QueryParameter(
            name="FriendlyName",
            description="Part of the name, in any case; fewer than three characters: its beginning.",
        ),
    ] = None,
    gateway: Annotated[
        str | None,
        QueryParameter(name="Gateway", description="The MAC or device id of the gateway it is behind."),
    ] = None,
    ids: Annotated[
        list[str] | None,
        QueryParameter(name="Ids", description="Is one of these; may be given several times."),
    ] = None,
) -> Filter:
    """Read the filters, or tell all that is wrong with them."""
    faults: list[Fault] = []

    def read(parse: Callable[[str, str], Value], text: str | None, field: str) -> Value | None:
        try:
            return None if text is None else parse(text, field)
        except WireError as exc:
            faults.append(Fault(exc.field, exc.reason))
            return None

    chosen = Filter(
        labels=tuple(sorted({found for each in label or () if (found := read(parse_label, each, "Label"))})),
        connected=read(_yes_or_no, connected, "Connected"),
        model=read(parse_model_number, model_number, "ModelNumber"),
        firmware=read(Version.parse, firmware_version, "FirmwareVersion"),
        hardware=read(Version.parse, hardware_version, "HardwareVersion"),
        name=read(parse_name_part, friendly_name, "FriendlyName"),
        gateway=read(parse_gateway, gateway, "Gateway"),
        ids=None
        if ids is None
        else tuple(sorted({mac_of(found) for each in ids if (found := read(parse_device_id, each, "Ids"))})),
    )
    if len(chosen.labels) > _LABELS:
        faults.append(Fault("Label", f"is given more than {_LABELS} times"))
    if faults:
        raise InvalidRequest(faults)
    return chosen


def read_order(sort: SortText = None) -> Order:
    """Read how to sort."""
    if sort is None:
        return Order()
    if sort not in _SORTS:
        raise InvalidRequest([Fault("Sort", f"is none of {', '.join(_SORTS)}")])
    return _SORTS[sort]


def read_live(include: Include = None) -> bool:
    """Read whether what changes with reports is asked for (rest-38)."""
    if include not in {None, "live"}:
        raise InvalidRequest([Fault("Include", "can only be live")])
    return include is not None


def _yes_or_no(text: str, field: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise MalformedText(field, "is neither true nor false")
    return text.lower() == "true"
