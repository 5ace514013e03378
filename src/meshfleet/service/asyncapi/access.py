"""Who may publish and read where, by the rules of the embedded broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.broker import Access, Account, Kind
from meshfleet.service.asyncapi.examples import GATEWAY
from meshfleet.wire.rest import Role

if TYPE_CHECKING:
    from collections.abc import Callable

_GATEWAY: Final = "gateway"
_ACCOUNTS: Final = {
    _GATEWAY: Account(kind=Kind.GATEWAY, name=GATEWAY),
    **{str(role): Account(kind=Kind.PERSON, name=role, role=role) for role in Role},
}


def access_to(topic: str, prefix: str) -> dict[str, list[str]]:
    """Tell who may do what with a topic of the gateway of the examples."""
    return {
        "publish": _allowed(prefix, lambda access: access.may_publish(topic)),
        "read": _allowed(prefix, lambda access: access.may_read(topic)),
    }


def in_words(access: dict[str, list[str]], gateway: str) -> str:
    """Tell the same to people; `gateway` is who a gateway is here."""
    words = {deed: ", ".join(_word(who, gateway) for who in whom) for deed, whom in access.items()}
    return f"Besides the service may publish here: {words['publish']}; may read: {words['read']}."


def _word(who: str, gateway: str) -> str:
    return gateway if who == _GATEWAY else f"{who}s"


def _allowed(prefix: str, may: Callable[[Access], bool]) -> list[str]:
    return [who for who, account in _ACCOUNTS.items() if may(Access(account, prefix))]
