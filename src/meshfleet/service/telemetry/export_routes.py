"""REST route `/api/v1/samples/export`, which exports samples of many devices (rest-234, rest-235)."""

from dataclasses import dataclass
from typing import Annotated

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.di import Provide
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, OpenAPIType, Operation, Schema
from litestar.params import QueryParameter, SkipValidation
from litestar.response import Stream

from meshfleet import csv_format
from meshfleet.db import Database
from meshfleet.db.samples.sample import SampleStore
from meshfleet.errors import Fault, InvalidRequest
from meshfleet.rest.telemetry import EXPORT_FORMATS, JSON_LINES_TYPE
from meshfleet.service.devices.model import DeviceFilter
from meshfleet.service.devices.parameters import parse_device_filter
from meshfleet.service.http.csv_response import prefers_csv
from meshfleet.service.http.request import ApiRequest
from meshfleet.service.telemetry.chunked_read import ChunkSizes
from meshfleet.service.telemetry.fleet_export import FleetExport
from meshfleet.service.telemetry.query_params import SampleSelection, parse_sample_selection

_FormatText = Annotated[
    str | None,
    QueryParameter(
        name="Format",
        description="Format: `jsonl`, with one JSON object per line, or `csv`. Default: by `Accept`.",
        schema_extra={"type": "string", "enum": list(EXPORT_FORMATS)},
    ),
]


@dataclass
class _ExportOperation(Operation):
    """OpenAPI operation whose response is JSON lines or CSV."""

    def __post_init__(self) -> None:
        response = (self.responses or {})["200"]
        assert isinstance(response, OpenAPIResponse)  # noqa: S101 # Litestar has just created it
        text = OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING))
        response.content = {JSON_LINES_TYPE: text, csv_format.MEDIA_TYPE: text}


@get("/export", operation_class=_ExportOperation)
async def export_samples(
    request: ApiRequest,
    device_filter: Given[DeviceFilter],
    sample_selection: Given[SampleSelection],
    database: Given[Database],
    samples: Given[SkipValidation[SampleStore]],
    chunk_sizes: Given[SkipValidation[ChunkSizes]],
    export_format: _FormatText = None,
) -> Stream:
    """Export the samples of all devices that match all filters, ordered by device and time.

    In the format `jsonl` the last line is `{"end":true,"samples":NUMBER}`: without it, samples are missing.
    """
    if export_format is not None and export_format not in EXPORT_FORMATS:
        raise InvalidRequest([Fault("Format", f"must be one of {', '.join(EXPORT_FORMATS)}")])
    is_csv = export_format == "csv" or (export_format is None and prefers_csv(request))
    await request.body()  # empty, but a disconnect before its end would count as an error
    export = FleetExport(database, samples, device_filter, sample_selection, chunk_size=chunk_sizes.csv_lines)
    return Stream(
        export.stream_csv() if is_csv else export.stream_json_lines(),
        media_type=csv_format.CONTENT_TYPE if is_csv else JSON_LINES_TYPE,
        headers={"content-disposition": f'attachment; filename="samples.{"csv" if is_csv else "jsonl"}"'},
    )


router = Router(
    "/api/v1/samples",
    route_handlers=[export_samples],
    dependencies={
        "device_filter": Provide(parse_device_filter, sync_to_thread=False),
        "sample_selection": Provide(parse_sample_selection, sync_to_thread=False),
    },
    tags=["Samples"],
)
