"""Claims the gateways of a CSV file, or gives them new passwords, and writes their credentials to a file."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING, Final

import click
import msgspec

from meshfleet.cli.gateway_csv import CredentialsFile, GatewayFile, GatewayLine, read_gateway_file
from meshfleet.errors import AlreadyExists, FleetError, ServiceUnreachable
from meshfleet.errors.protocol import LineFault
from meshfleet.rest.gateways import MAX_BATCH, BatchGateway

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from meshfleet.client import Fleet

_MAX_BATCH_BYTES: Final = 512 << 10
"""Maximum bytes of the gateways in one request: the service refuses request bodies of more than a MiB."""


async def claim_file(fleet: Fleet, source: Path, out: Path, *, skip_claimed: bool) -> dict[str, object]:
    """Claim all gateways of a CSV file, and write their credentials to the new file `out`.

    If a line is wrong, claim no gateway and raise `ClickException`. If a gateway is already claimed, leave it
    out with `skip_claimed`, else treat its line as wrong. Return the result to print with `--json`.
    """
    file = read_gateway_file(source)
    claimed = {each.mac async for each in fleet.gateways.list()}
    gateways = [each for each in file.gateways if each.mac not in claimed]
    skipped = len(file.gateways) - len(gateways)
    if not skip_claimed:
        file.faults.extend(
            LineFault(each.line, f"mac: {each.mac} is already claimed")
            for each in file.gateways
            if each.mac in claimed
        )
    file.raise_faults(_describe_refusal(file, skipped, skip_claimed=skip_claimed))
    with CredentialsFile(out) as credentials:
        for batch in _split_into_batches(gateways):
            try:
                credentials.add(await fleet.gateways.claim_many(map(_to_body, batch)))
            except (FleetError, OSError) as exc:
                raise click.ClickException(_describe_failed_claim(exc, credentials, batch)) from exc
            except asyncio.CancelledError as exc:
                click.echo(_describe_failed_claim(exc, credentials, batch), err=True)
                raise
    return {"claimed": len(gateways), "skipped": skipped, "out": str(out) if gateways else None}


async def rotate_file(fleet: Fleet, source: Path, out: Path) -> dict[str, object]:
    """Give all gateways of a CSV file new passwords, and write their credentials to the new file `out`.

    If a line is wrong or its gateway is not claimed, change no password and raise `ClickException`. Return
    the result to print with `--json`.
    """
    file = read_gateway_file(source)
    claimed = {each.mac async for each in fleet.gateways.list()}
    file.faults.extend(
        LineFault(each.line, f"mac: {each.mac} is not claimed")
        for each in file.gateways
        if each.mac not in claimed
    )
    file.raise_faults("no password was changed, as lines are wrong:")
    with CredentialsFile(out) as credentials:
        for each in file.gateways:
            try:
                # One by one, and each is on the disk before the next: a crash costs at most one password.
                credentials.add([await fleet.gateways.rotate(each.mac)])
            except (FleetError, OSError) as exc:
                text = _describe_failed_rotation(exc, credentials, each, len(file.gateways))
                raise click.ClickException(text) from exc
            except asyncio.CancelledError as exc:
                click.echo(_describe_failed_rotation(exc, credentials, each, len(file.gateways)), err=True)
                raise
    return {"rotated": len(file.gateways), "out": str(out)}


def _describe_refusal(file: GatewayFile, claimed: int, *, skip_claimed: bool) -> str:
    """Return the first lines of the error for wrong lines. `claimed` counts gateways already claimed."""
    if not claimed or skip_claimed:
        return "nothing was claimed, as lines are wrong:"
    return (
        "nothing was claimed, as lines are wrong. --skip-claimed leaves out gateways that are claimed. "
        "If their passwords are lost, create new ones: "
        f"meshfleet gateways rotate --csv {shlex.quote(file.name)} --out FILE"
    )


def _split_into_batches(gateways: Iterable[GatewayLine]) -> Iterator[list[GatewayLine]]:
    """Yield the gateways in batches, each small enough for one request."""
    batch: list[GatewayLine] = []
    size = 0
    for each in gateways:
        length = len(msgspec.json.encode(_to_body(each)))
        if batch and (len(batch) == MAX_BATCH or size + length > _MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += length
    if batch:
        yield batch


def _to_body(gateway: GatewayLine) -> BatchGateway:
    return BatchGateway(mac=gateway.mac, friendly_name=gateway.name, labels=gateway.labels)


def _describe_failed_claim(
    error: BaseException, credentials: CredentialsFile, batch: list[GatewayLine]
) -> str:
    """Return an error text that says which gateways are claimed, which may be claimed, and what to do."""
    lines = f"lines {batch[0].line} to {batch[-1].line}" if len(batch) > 1 else f"line {batch[0].line}"
    texts = [_describe_error(error)]
    if credentials.count:
        texts.append(
            f"{credentials.count} gateways are claimed, and their credentials in {credentials.path}."
        )
    if isinstance(error, (AlreadyExists, OSError, asyncio.CancelledError)) or (
        isinstance(error, ServiceUnreachable) and error.was_sent
    ):
        texts.append(
            f"The gateways of {lines} may be claimed without their passwords being stored. "
            "See meshfleet gateways list; create new passwords with meshfleet gateways rotate --csv."
        )
    else:
        texts.append(f"The gateways from line {batch[0].line} on are not claimed.")
    if credentials.count:
        texts.append("For the others run the command again with --skip-claimed and another --out.")
    return "\n".join(texts)


def _describe_failed_rotation(
    error: BaseException, credentials: CredentialsFile, gateway: GatewayLine, total: int
) -> str:
    """Return an error text that says which gateways have new passwords, and what to do."""
    return (
        f"{_describe_error(error)}\n"
        f"{credentials.count} of {total} gateways have new passwords, which are in {credentials.path}; the "
        f"password of {gateway.mac} (line {gateway.line}) may have changed, the others have not. Run the "
        "command again with another --out."
    )


def _describe_error(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "Interrupted."
    if isinstance(error, OSError):
        return f"the credentials cannot be written: {error.strerror}"
    return str(error)
