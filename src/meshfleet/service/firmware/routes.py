"""REST routes `/api/v1/firmware`, and `/api/v1/images`, where gateways download images."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args

from litestar import Router, delete, get, post
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
from litestar.params import FromPath, QueryParameter, SkipValidation

from meshfleet.db import Database
from meshfleet.protocol.ids import Version, parse_model_number
from meshfleet.protocol.times import parse_millis
from meshfleet.rest.firmware import FIRMWARE_PATH, IMAGES_PATH, Firmware, FirmwarePage, FirmwareState
from meshfleet.service.actor import Actor
from meshfleet.service.clock import Now
from meshfleet.service.firmware import store, upload_form
from meshfleet.service.firmware.image_response import MEDIA_TYPE, ImageResponse, parse_range
from meshfleet.service.firmware.image_store import ImageStore
from meshfleet.service.firmware.signed_urls import ImageUrlSigner
from meshfleet.service.firmware.uploads import UploadReceiver
from meshfleet.service.http.form_upload import FORM_MEDIA_TYPE
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken, QueryReader, build_choice_parser
from meshfleet.service.http.request import ApiRequest, decode_segment
from meshfleet.service.jobs.notifications import RunnerWakeup
from meshfleet.service.metrics import Metrics

_STATES: Final[Mapping[str, FirmwareState]] = {each: each for each in get_args(FirmwareState)}
_parse_state = build_choice_parser(_STATES)
_BINARY: Final = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)


def _build_string_schema(description: str, **more: Any) -> Schema:
    return Schema(type=OpenAPIType.STRING, description=description, **more)


@dataclass
class _UploadOperation(Operation):
    """OpenAPI operation that documents the form fields of a firmware upload.

    Litestar cannot derive the fields, because the request body is streamed.
    """

    def __post_init__(self) -> None:
        fields: dict[str, Any] = {
            upload_form.IMAGE: Schema(
                type=OpenAPIType.STRING,
                description="Firmware image, with its file name.",
                content_media_type=MEDIA_TYPE,
            ),
            upload_form.MODEL: _build_string_schema(
                "Model number: four hex digits.", pattern="^[0-9A-Fa-f]{4}$"
            ),
            upload_form.VERSION: _build_string_schema("Firmware version, such as `3.4.2` or `3.4.2-beta.1`."),
            upload_form.HARDWARE: Schema(
                type=OpenAPIType.ARRAY,
                items=_build_string_schema("Hardware version: three numbers, as devices report it."),
                description="Supported hardware versions. Can be repeated. Default: any version.",
            ),
            upload_form.MIN_VERSION: _build_string_schema(
                "Oldest firmware version from which a device can be updated to this version."
            ),
            upload_form.NOTES: _build_string_schema(
                "Release notes.", max_length=upload_form.MAX_NOTES_LENGTH
            ),
            upload_form.SHA256: _build_string_schema(
                "SHA-256 of the image in hex. The upload fails if it does not match.",
                pattern="^[0-9A-Fa-f]{64}$",
            ),
            upload_form.TYPE: _build_string_schema(
                "Type of the image. 1: a Nordic distribution package or a bare image; 2: a RAUC bundle. The "
                "default is 2 for files named *.raucb, and 1 otherwise.",
                enum=["1", "2"],
            ),
            upload_form.BARE: _build_string_schema(
                "Whether the image is a bare image, not a package.", enum=["true", "false"]
            ),
            upload_form.OVERRIDE: _build_string_schema(
                "Accept an image that fails its check: a bare image that does not look like one, or a "
                "package with a different version number. The audit log records the fault.",
                enum=["true", "false"],
            ),
        }
        schema = Schema(
            type=OpenAPIType.OBJECT,
            properties=fields,
            required=[upload_form.IMAGE, upload_form.MODEL, upload_form.VERSION],
            additional_properties=False,
        )
        self.request_body = RequestBody(
            content={FORM_MEDIA_TYPE: OpenAPIMediaType(schema=schema)}, required=True
        )


@dataclass
class _ImageOperation(Operation):
    """OpenAPI operation that documents the responses of an image download, which are binary."""

    def __post_init__(self) -> None:
        content = {MEDIA_TYPE: OpenAPIMediaType(schema=_BINARY)}
        self.responses = {
            **(self.responses or {}),
            "200": OpenAPIResponse(description="The whole image.", content=content),
            "206": OpenAPIResponse(
                description="The part of the image that the header `Range` requests.", content=content
            ),
        }


@post(operation_class=_UploadOperation, request_max_body_size=None, problems=(409,))
async def upload_firmware(
    request: ApiRequest,
    actor: Given[Actor],
    database: Given[Database],
    image_store: Given[SkipValidation[ImageStore]],
    upload_receiver: Given[UploadReceiver],
    now: Given[Now],
) -> Firmware:
    """Upload a firmware image, and create a firmware record for it in state `draft`."""
    async with upload_receiver.receive_upload(request) as upload:
        return await database.write(store.insert_firmware, *upload, images=image_store, by=actor, now=now())


@get()
async def list_firmware(
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    next_token: NextToken = None,
    model_number: Annotated[
        str | None,
        QueryParameter(name="ModelNumber", description="Model number: four hex digits, such as `000F`."),
    ] = None,
    version: Annotated[
        str | None,
        QueryParameter(name="Version", description="Firmware version, such as `3.4.2` or `3.4.2-beta.1`."),
    ] = None,
    stage: Annotated[  # not `state`, which has a special meaning in Litestar
        str | None,
        QueryParameter(
            name="State",
            description="State of the firmware record.",
            schema_extra={"type": "string", "enum": list(_STATES)},
        ),
    ] = None,
) -> FirmwarePage:
    """List firmware records, the newest first."""
    query = _parse_firmware_filter(model_number, version, stage)
    before = None if next_token is None else store.FirmwarePosition(*pages.decode(query, next_token))
    records = await database.read(store.list_firmware, query, before=before, limit=limit + 1)
    return FirmwarePage(**pages.build_page(query, records, limit, _get_position))


@get("/{firmware_id:str}")
async def show_firmware(firmware_id: FromPath[str], database: Given[Database]) -> Firmware:
    """Show a firmware record."""
    return await database.read(store.load_firmware, decode_segment(firmware_id))


@get("/{firmware_id:str}/image", operation_class=_ImageOperation, problems=(416,))
async def download_image(
    firmware_id: FromPath[str],
    request: ApiRequest,
    database: Given[Database],
    image_store: Given[SkipValidation[ImageStore]],
    metrics: Given[Metrics],
) -> ImageResponse:
    """Download the image of a firmware record."""
    firmware = await database.read(store.load_firmware, decode_segment(firmware_id))
    return await _build_image_response(request, image_store, firmware, metrics)


@post("/{firmware_id:str}/release", status_code=200, problems=(409,))
async def release_firmware(
    firmware_id: FromPath[str], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> Firmware:
    """Release firmware, so that jobs can install it on devices."""
    return await database.write(store.release_firmware, decode_segment(firmware_id), by=actor, now=now())


@post("/{firmware_id:str}/withdraw", status_code=200)
async def withdraw_firmware(
    firmware_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
    job_wakeup: Given[RunnerWakeup],
) -> Firmware:
    """Withdraw firmware: gateways can no longer download the image, and jobs that use it are canceled."""
    withdrawn = await database.write(
        store.withdraw_firmware, decode_segment(firmware_id), by=actor, now=now()
    )
    job_wakeup.wake()
    return withdrawn


@delete("/{firmware_id:str}", problems=(409,))
async def remove_firmware(
    firmware_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    image_store: Given[SkipValidation[ImageStore]],
    now: Given[Now],
) -> None:
    """Remove a firmware record that no job has used, and its image."""
    image = await database.write(store.delete_firmware, decode_segment(firmware_id), by=actor, now=now())
    await database.write(image_store.remove_unused_image, image)


@get("/{token:str}/{file_name:str}", operation_class=_ImageOperation, problems=(416,))
async def fetch_image(
    token: FromPath[str],
    file_name: FromPath[str],  # noqa: ARG001 # only for clients that save the file; the token identifies the image
    request: ApiRequest,
    url_signer: Given[ImageUrlSigner],
    database: Given[Database],
    image_store: Given[SkipValidation[ImageStore]],
    metrics: Given[Metrics],
) -> ImageResponse:
    """Download a firmware image with a signed URL that the service sent to a gateway."""
    firmware = await database.read(
        store.load_firmware_for_gateway, *url_signer.verify_token(decode_segment(token))
    )
    return await _build_image_response(request, image_store, firmware, metrics)


async def _build_image_response(
    request: ApiRequest, images: ImageStore, firmware: Firmware, metrics: Metrics
) -> ImageResponse:
    # The body is empty, but a client that disconnects before it was read would be reported as an error.
    await request.body()
    return ImageResponse(images, firmware, parse_range(request.headers, firmware), metrics)


def _parse_firmware_filter(
    model_number: str | None, version: str | None, state: str | None
) -> store.FirmwareFilter:
    """Parse the query parameters of the firmware list. Raise `InvalidRequest` with all faults."""
    reader = QueryReader()
    query = store.FirmwareFilter(
        model=reader.read(parse_model_number, model_number, "ModelNumber", default=None),
        version=reader.read(_parse_version, version, "Version", default=None),
        state=reader.read(_parse_state, state, "State", default=None),
    )
    reader.raise_faults()
    return query


def _parse_version(text: str, field: str) -> str:
    return str(Version.parse(text, field))


def _get_position(last: Firmware) -> store.FirmwarePosition:
    return store.FirmwarePosition(parse_millis(last.created_at), last.id)


router = Router(
    FIRMWARE_PATH,
    route_handlers=[
        upload_firmware,
        list_firmware,
        show_firmware,
        download_image,
        release_firmware,
        withdraw_firmware,
        remove_firmware,
    ],
    tags=["Firmware"],
)
image_router = Router(IMAGES_PATH, route_handlers=[fetch_image], tags=["Firmware"])
