"""REST routes `/api/v1/sites/{site_id}/floors/{floor}/plan`: pictures of floors."""

from dataclasses import dataclass
from typing import Final

from litestar import Router, delete, get, put
from litestar.di import NamedDependency as Given
from litestar.openapi.spec import (
    OpenAPIFormat,
    OpenAPIMediaType,
    OpenAPIResponse,
    OpenAPIType,
    Operation,
    RequestBody,
    Schema,
)
from litestar.params import FromPath, SkipValidation
from litestar.response.base import ASGIResponse

from meshfleet.db import Database
from meshfleet.rest.paths import SITES_PATH
from meshfleet.rest.sites import Plan
from meshfleet.service.actor import Actor
from meshfleet.service.clock import Now
from meshfleet.service.http.binary_response import BinaryResponse
from meshfleet.service.http.form_upload import FORM_MEDIA_TYPE
from meshfleet.service.http.request import ApiRequest
from meshfleet.service.sites import plans
from meshfleet.service.sites.parameters import parse_path_floor
from meshfleet.service.sites.plan_image import IMAGE
from meshfleet.service.sites.plan_reference import REFERENCE
from meshfleet.service.sites.plan_upload import SHA256, PlanReceiver

_EXTENSIONS: Final = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg"}
"""Extension of the file name by content type."""
_CONTENT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""Content-Security-Policy of pictures: an SVG file opened as a page runs no script and loads nothing."""


@dataclass
class _PlanUploadOperation(Operation):
    """OpenAPI operation that documents the form fields of a plan, which Litestar cannot derive."""

    def __post_init__(self) -> None:
        image = "Picture of the floor: PNG, JPEG or SVG, at most 20 MiB."
        reference = (
            "JSON list of two points `{px, py, x, y}`: pixels in the picture, from its upper left corner,"
            " and meters on the floor."
        )
        text = OpenAPIType.STRING
        schema = Schema(
            type=OpenAPIType.OBJECT,
            properties={
                IMAGE: Schema(type=text, description=image, content_media_type="application/octet-stream"),
                REFERENCE: Schema(type=text, description=reference, content_media_type="application/json"),
                SHA256: Schema(
                    type=text,
                    description="SHA-256 of the picture in hex. The upload fails if it does not match.",
                    pattern="^[0-9A-Fa-f]{64}$",
                ),
            },
            required=[IMAGE, REFERENCE],
            additional_properties=False,
        )
        self.request_body = RequestBody(
            content={FORM_MEDIA_TYPE: OpenAPIMediaType(schema=schema)}, required=True
        )


@dataclass
class _PlanOperation(Operation):
    """OpenAPI operation that documents the download of a plan, whose content is binary."""

    def __post_init__(self) -> None:
        binary = OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY))
        self.responses = {
            **(self.responses or {}),
            "200": OpenAPIResponse(description="The picture.", content=dict.fromkeys(_EXTENSIONS, binary)),
            "304": OpenAPIResponse(description="The picture is that of the header `If-None-Match`."),
        }


@put(
    "/{site_id:str}/floors/{floor:str}/plan",
    operation_class=_PlanUploadOperation,
    request_max_body_size=None,
    problems=(429,),
)
async def upload_plan(
    site_id: FromPath[str],
    floor: FromPath[str],
    request: ApiRequest,
    actor: Given[Actor],
    database: Given[Database],
    plan_receiver: Given[SkipValidation[PlanReceiver]],
    now: Given[Now],
) -> Plan:
    """Upload the picture of a floor with two reference points, or replace it.

    The two points determine scale, rotation and origin of the picture.
    """
    key = parse_path_floor(site_id, floor)
    async with plan_receiver.receive(request) as received:
        return await database.write(plans.store_plan, key, received, by=actor, now=now())


@get("/{site_id:str}/floors/{floor:str}/plan", operation_class=_PlanOperation)
async def download_plan(
    site_id: FromPath[str], floor: FromPath[str], request: ApiRequest, database: Given[Database]
) -> ASGIResponse:
    """Download the picture of a floor."""
    # The body is empty, but a client that disconnects before it was read would be reported as an error.
    await request.body()
    key = parse_path_floor(site_id, floor)
    found = await database.read(plans.load_plan, key)
    headers = {
        "cache-control": "private, no-cache",  # browsers ask again, and get 304 if it is unchanged
        "content-disposition": f'inline; filename="floor{key.floor}.{_EXTENSIONS[found.content_type]}"',
        "content-security-policy": _CONTENT_POLICY,
        "etag": f'"{found.sha256.hex()}"',
    }
    if _is_unchanged(request.headers.get("if-none-match", ""), headers["etag"]):
        return ASGIResponse(status_code=304, headers=headers)
    return BinaryResponse(
        plans.stream_plan(database, found), size=found.size, media_type=found.content_type, headers=headers
    )


@delete("/{site_id:str}/floors/{floor:str}/plan")
async def remove_plan(
    site_id: FromPath[str],
    floor: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> None:
    """Delete the picture of a floor."""
    await database.write(plans.delete_plan, parse_path_floor(site_id, floor), by=actor, now=now())


def _is_unchanged(if_none_match: str, etag: str) -> bool:
    """Return whether a client has the present content already (RFC 9110, 13.1.2)."""
    tags = {each.strip().removeprefix("W/") for each in if_none_match.split(",")}
    return not tags.isdisjoint({etag, "*"})


router = Router(SITES_PATH, route_handlers=[upload_plan, download_plan, remove_plan], tags=["Sites"])
