"""Anchor of `bench.api`: the device list written with FastAPI, pydantic and SQLAlchemy's ORM.

It reads the same SQLite file and returns the same JSON. It is faster for what it leaves out: it has one
filter, does not sign page tokens, and does not check whether a login was revoked.

python -m bench.api_reference FILE

Prints one JSON object with its URL and an access token, and serves until it is stopped.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import jwt
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Query
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from sqlalchemy import URL, Column, ForeignKey, Table, create_engine, event, select
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    joinedload,
    mapped_column,
    relationship,
    selectinload,
)

SECRET = secrets.token_bytes(32)


class Base(DeclarativeBase):
    """Base of the tables, with the columns that the list shows."""


device_label = Table(
    "device_label",
    Base.metadata,
    Column("label", ForeignKey("label.id"), primary_key=True),
    Column("device", ForeignKey("device.id"), primary_key=True),
)


class LabelRow(Base):
    """Label."""

    __tablename__ = "label"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]


class StateRow(Base):
    """State of a device that changes with every report."""

    __tablename__ = "device_state"
    device: Mapped[int] = mapped_column(ForeignKey("device.id"), primary_key=True)
    status: Mapped[int | None]
    boot_mode: Mapped[str | None]


class DeviceRow(Base):
    """Device."""

    __tablename__ = "device"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    model: Mapped[int]
    firmware: Mapped[str]
    hardware: Mapped[str]
    imei: Mapped[str | None]
    connected: Mapped[bool]
    connected_at: Mapped[int]
    labels: Mapped[list[LabelRow]] = relationship(secondary=device_label, order_by=LabelRow.text)
    state: Mapped[StateRow | None] = relationship()


class Body(BaseModel):
    """Base of response bodies."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Connectivity(Body):
    """Connection state of a device, and the time of its last change."""

    connected: bool
    timestamp: str


class Device(Body):
    """Device in the list."""

    id: str
    friendly_name: str
    model_number: str
    labels: list[str]
    boot_mode: str | None
    connectivity: Connectivity
    firmware_version: str
    hardware_version: str
    imei: str | None
    status: int | None

    @classmethod
    def of(cls, row: DeviceRow) -> Device:
        """Build the body from a row."""
        state = row.state
        return cls(
            id=f"bmac-{row.id:012x}",
            friendly_name=row.name,
            model_number=f"{row.model:04X}",
            labels=[label.text for label in row.labels],
            boot_mode=state.boot_mode if state else None,
            connectivity=Connectivity(connected=row.connected, timestamp=_format_time(row.connected_at)),
            firmware_version=row.firmware,
            hardware_version=row.hardware,
            imei=row.imei,
            status=state.status if state else None,
        )


class DevicePage(Body):
    """Page of devices, and the token of the next page."""

    items: list[Device]
    next_token: str | None


def _format_time(millis: int) -> str:
    return (
        datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
        + "Z"
    )


async def user(bearer: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> str:
    """Return the user of the access token, or respond with 401."""
    try:
        claims = jwt.decode(bearer.credentials, SECRET, algorithms=["HS256"], audience="reference")
    except jwt.InvalidTokenError:
        raise HTTPException(401) from None
    name: str = claims["sub"]
    return name


def make_app(file: Path) -> FastAPI:
    """Create the application for an SQLite file."""
    app = FastAPI()
    engine = create_engine(
        URL.create("sqlite", database=str(file)), connect_args={"check_same_thread": False}
    )
    event.listen(engine, "connect", _set_cache_size)

    # Not a coroutine: FastAPI runs it in a thread, so that the database does not block the event loop.
    @app.get("/api/v1/devices", dependencies=[Depends(user)])
    def list_devices(
        label: Annotated[str | None, Query(alias="Label")] = None,
        max_results: Annotated[int, Query(alias="MaxResults", ge=1, le=1000)] = 100,
        next_token: Annotated[int, Query(alias="NextToken")] = -1,
    ) -> DevicePage:
        with Session(engine) as session:
            # The same number from the index of labels: ordered by the other, SQLite would sort all matches.
            number = DeviceRow.id if label is None else device_label.c.device
            query = select(DeviceRow).where(number > next_token).order_by(number)
            if label is not None:
                query = query.join(device_label, number == DeviceRow.id)
                query = query.join(LabelRow).where(LabelRow.text == label)
            query = query.options(selectinload(DeviceRow.labels), joinedload(DeviceRow.state))
            rows = session.scalars(query.limit(max_results + 1)).all()
        items = [Device.of(row) for row in rows[:max_results]]
        more = len(rows) > max_results
        return DevicePage(items=items, next_token=str(rows[max_results - 1].id) if more else None)

    return app


def _set_cache_size(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA cache_size = -65536")  # as in the service


def main() -> None:
    """Serve on a free port."""
    listener = socket.create_server(("127.0.0.1", 0))
    claims = {"sub": "bench", "aud": "reference", "exp": int(time.time()) + 3600}
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    print(json.dumps({"url": url, "token": jwt.encode(claims, SECRET, algorithm="HS256")}), flush=True)
    config = uvicorn.Config(make_app(Path(sys.argv[1])), log_config=None, access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
