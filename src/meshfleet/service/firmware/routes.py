"""`/api/v1/firmware`, and `/api/v1/images`, where gateways get images."""

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
from meshfleet.service.accounts.model import Actor
from meshfleet.service.clock import Now
from meshfleet.service.firmware import form, store
from meshfleet.service.firmware.addresses import Addresses
from meshfleet.service.firmware.images import Images
from meshfleet.service.firmware.intake import FORM, Intake
from meshfleet.service.firmware.sending import MEDIA_TYPE, ImageAnswer, read_span
from meshfleet.service.http.asked import Asked
from meshfleet.service.http.pages import Pages
from meshfleet.service.http.parameters import NextToken
from meshfleet.service.http.paths import segment
from meshfleet.service.http.query_reader import QueryReader, one_of
from meshfleet.service.jobs.bell import Bell
from meshfleet.service.operations.figures import Figures
from meshfleet.wire.ids import Version, parse_model_number
from meshfleet.wire.rest import FIRMWARE, IMAGES, Firmware, FirmwarePage, FirmwareState
from meshfleet.wire.times import parse_millis

_STATES: Final[Mapping[str, FirmwareState]] = {each: each for each in get_args(FirmwareState)}
_state = one_of(_STATES)
_BINARY: Final = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)


def _text(description: str, **more: Any) -> Schema:
    return Schema(type=OpenAPIType.STRING, description=description, **more)


@dataclass
class _Upload(Operation):
    """Tells what the body is, which Litestar cannot know: it is read piece by piece."""

    def __post_init__(self) -> None:
        fields: dict[str, Any] = {
            form.IMAGE: Schema(
                type=OpenAPIType.STRING,
                description="The image, with its file name.",
                content_media_type=MEDIA_TYPE,
            ),
            form.MODEL: _text("Four hex digits.", pattern="^[0-9A-Fa-f]{4}$"),
            form.VERSION: _text("Such as `3.4.2` or `3.4.2-beta.1`."),
            form.HARDWARE: Schema(
                type=OpenAPIType.ARRAY,
                items=_text("Three numbers, as devices tell theirs."),
                description="For which hardware it is; the field may come several times. Without: for any.",
            ),
            form.MIN_VERSION: _text("The oldest version from which a device can take it."),
            form.NOTES: _text("For people.", max_length=form.LONGEST_NOTES),
            form.SHA256: _text("Checked against the image.", pattern="^[0-9A-Fa-f]{64}$"),
            form.TYPE: _text(
                "1: a Nordic distribution package or a bare image; 2: a RAUC bundle, as is a file called "
                "*.raucb unless set.",
                enum=["1", "2"],
            ),
            form.BARE: _text("The image is a bare one, without a package around it.", enum=["true", "false"]),
            form.OVERRIDE: _text(
                "Accept a bare image that does not look like one, or a package whose version number means "
                "something else. The audit log keeps what was found.",
                enum=["true", "false"],
            ),
        }
        schema = Schema(
            type=OpenAPIType.OBJECT,
            properties=fields,
            required=[form.IMAGE, form.MODEL, form.VERSION],
            additional_properties=False,
        )
        self.request_body = RequestBody(content={FORM: OpenAPIMediaType(schema=schema)}, required=True)


@dataclass
class _Image(Operation):
    """Tells what the answer is, which Litestar cannot know."""

    def __post_init__(self) -> None:
        content = {MEDIA_TYPE: OpenAPIMediaType(schema=_BINARY)}
        self.responses = {
            **(self.responses or {}),
            "200": OpenAPIResponse(description="The image.", content=content),
            "206": OpenAPIResponse(description="The part that `Range` names.", content=content),
        }


@post(operation_class=_Upload, request_max_body_size=None, problems=(409,))
async def upload_firmware(
    request: Asked,
    actor: Given[Actor],
    database: Given[Database],
    images: Given[SkipValidation[Images]],
    intake: Given[Intake],
    now: Given[Now],
) -> Firmware:
    """Upload an image, and make its record, which is a draft."""
    async with intake.receive(request) as upload:
        return await database.write(store.add, *upload, images=images, by=actor, now=now())


@get()
async def list_firmware(
    database: Given[Database],
    pages: Given[Pages],
    limit: Given[int],
    next_token: NextToken = None,
    model_number: Annotated[
        str | None, QueryParameter(name="ModelNumber", description="Four hex digits, such as `000F`.")
    ] = None,
    version: Annotated[
        str | None, QueryParameter(name="Version", description="Such as `3.4.2` or `3.4.2-beta.1`.")
    ] = None,
    stage: Annotated[  # Litestar gives another meaning to `state`
        str | None,
        QueryParameter(
            name="State",
            description="In one of these states.",
            schema_extra={"type": "string", "enum": list(_STATES)},
        ),
    ] = None,
) -> FirmwarePage:
    """List firmware, the newest first."""
    choice = _choice(model_number, version, stage)
    before = None if next_token is None else pages.read(choice, next_token)
    found = await database.read(store.page, choice, before=before, limit=limit + 1)
    return FirmwarePage(**pages.cut(choice, found, limit, _position))


@get("/{firmware_id:str}")
async def show_firmware(firmware_id: FromPath[str], database: Given[Database]) -> Firmware:
    """Show a firmware record."""
    return await database.read(store.show, segment(firmware_id))


@get("/{firmware_id:str}/image", operation_class=_Image, problems=(416,))
async def download_image(
    firmware_id: FromPath[str],
    request: Asked,
    database: Given[Database],
    images: Given[SkipValidation[Images]],
    figures: Given[Figures],
) -> ImageAnswer:
    """Download the image of a firmware record."""
    found = await database.read(store.show, segment(firmware_id))
    return await _answer(request, images, found, figures)


@post("/{firmware_id:str}/release", status_code=200, problems=(409,))
async def release_firmware(
    firmware_id: FromPath[str], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> Firmware:
    """Release firmware: from now on it can be rolled out."""
    return await database.write(store.release, segment(firmware_id), by=actor, now=now())


@post("/{firmware_id:str}/withdraw", status_code=200)
async def withdraw_firmware(
    firmware_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
    bell: Given[Bell],
) -> Firmware:
    """Withdraw firmware: no gateway gets it any more, and its jobs are canceled."""
    withdrawn = await database.write(store.withdraw, segment(firmware_id), by=actor, now=now())
    bell.ring()
    return withdrawn


@delete("/{firmware_id:str}", problems=(409,))
async def remove_firmware(
    firmware_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    images: Given[SkipValidation[Images]],
    now: Given[Now],
) -> None:
    """Remove firmware that no job has used."""
    image = await database.write(store.remove, segment(firmware_id), by=actor, now=now())
    await database.write(images.discard, image)


@get("/{token:str}/{file_name:str}", operation_class=_Image, problems=(416,))
async def fetch_image(
    token: FromPath[str],
    file_name: FromPath[str],  # noqa: ARG001 # for who saves it; the token tells all
    request: Asked,
    addresses: Given[Addresses],
    database: Given[Database],
    images: Given[SkipValidation[Images]],
    figures: Given[Figures],
) -> ImageAnswer:
    """Download an image with an address that a gateway was told."""
    found = await database.read(store.find_for, *addresses.read(segment(token)))
    return await _answer(request, images, found, figures)


async def _answer(request: Asked, images: Images, found: Firmware, figures: Figures) -> ImageAnswer:
    await request.body()  # there is none; but who goes away before its end counts as a mistake
    return ImageAnswer(images, found, read_span(request.headers, found), figures)


def _choice(model_number: str | None, version: str | None, state: str | None) -> store.Choice:
    """What is asked for, or all that is wrong with it."""
    reader = QueryReader()
    choice = store.Choice(
        model=reader.read(parse_model_number, model_number, "ModelNumber", unless=None),
        version=reader.read(_version, version, "Version", unless=None),
        state=reader.read(_state, state, "State", unless=None),
    )
    reader.end()
    return choice


def _version(text: str, field: str) -> str:
    return str(Version.parse(text, field))


def _position(last: Firmware) -> tuple[int, str]:
    return parse_millis(last.created_at), last.id


router = Router(
    FIRMWARE,
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
image_router = Router(IMAGES, route_handlers=[fetch_image], tags=["Firmware"])
