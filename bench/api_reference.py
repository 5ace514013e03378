"""The anchor of `bench.api`: the list of devices as written with FastAPI, pydantic and SQLAlchemy's ORM.

It reads the same SQLite file and answers the same JSON. What it leaves out makes it faster: it knows one
filter, signs no page tokens, and never asks whether a login has ended.

python -m bench.api_reference FILE

Prints one JSON object, with the address and a token for it, and serves until it is told to stop.
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
    """The tables, as far as the list shows them."""


device_label = Table(
    "device_label",
    Base.metadata,
    Column("label", ForeignKey("label.id"), primary_key=True),
    Column("device", ForeignKey("device.id"), primary_key=True),
)


class LabelRow(Base):
    """A label."""

    __tablename__ = "label"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]


class StateRow(Base):
    """What changes with every report."""

    __tablename__ = "device_state"
    device: Mapped[int] = mapped_column(ForeignKey("device.id"), primary_key=True)
    status: Mapped[int | None]
    boot_mode: Mapped[str | None]


class DeviceRow(Base):
    """A device."""

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
    """What is answered."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Connectivity(Body):
    """Whether a device is connected, and since when it is or is not."""

    connected: bool
    timestamp: str


class Device(Body):
    """A device in the list."""

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
        """Spell a row."""
        state = row.state
        return cls(
            id=f"bmac-{row.id:012x}",
            friendly_name=row.name,
            model_number=f"{row.model:04X}",
            labels=[label.text for label in row.labels],
            boot_mode=state.boot_mode if state else None,
            connectivity=Connectivity(connected=row.connected, timestamp=_spell(row.connected_at)),
            firmware_version=row.firmware,
            hardware_version=row.hardware,
            imei=row.imei,
            status=state.status if state else None,
        )


class DevicePage(Body):
    """Devices, and where the next page begins."""

    items: list[Device]
    next_token: str | None


def _spell(millis: int) -> str:
    return (
        datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
        + "Z"
    )


async def user(bearer: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> str:
    """Who asks."""
    try:
        claims = jwt.decode(bearer.credentials, SECRET, algorithms=["HS256"], audience="reference")
    except jwt.InvalidTokenError:
        raise HTTPException(401) from None
    name: str = claims["sub"]
    return name


def make_app(file: Path) -> FastAPI:
    """The application on a database."""
    app = FastAPI()
    engine = create_engine(
        URL.create("sqlite", database=str(file)), connect_args={"check_same_thread": False}
    )
    event.listen(engine, "connect", _set_up)

    # Not a coroutine: FastAPI runs it in a thread, and the event loop does not wait for the database.
    @app.get("/api/v1/devices", dependencies=[Depends(user)])
    def list_devices(
        label: Annotated[str | None, Query(alias="Label")] = None,
        max_results: Annotated[int, Query(alias="MaxResults", ge=1, le=1000)] = 100,
        next_token: Annotated[int, Query(alias="NextToken")] = -1,
    ) -> DevicePage:
        with Session(engine) as session:
            # The same number, but in the index of labels: by the other SQLite would sort all that have it.
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


def _set_up(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA cache_size = -65536")  # as large as ours


def main() -> None:
    """Serve."""
    listener = socket.create_server(("127.0.0.1", 0))
    claims = {"sub": "bench", "aud": "reference", "exp": int(time.time()) + 3600}
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    print(json.dumps({"url": url, "token": jwt.encode(claims, SECRET, algorithm="HS256")}), flush=True)
    config = uvicorn.Config(make_app(Path(sys.argv[1])), log_config=None, access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
