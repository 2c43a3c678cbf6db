"""The people who look at the console: each with a client of its own, and the rights that hosts report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from foqs.console.reach import ClientPair
from foqs.contract.granting import principal_of
from foqs.contract.permissions import Permission
from foqs.model import limits
from foqs.model.calls import Identity
from foqs.model.errors import FoqsError, PermissionDeniedError
from foqs.model.principal import EVERYBODY, Principal

RIGHTS_MS_MAX: Final = 2 * limits.SECOND_MS
"""The age of rights at which they are asked for again, in milliseconds: that in which hosts follow a change."""


class Rights:
    """The rights of a viewer, by which pages leave out all that hosts would refuse. Hosts check each call again."""

    __slots__ = ("_principal", "expires_at_ms")

    def __init__(self, identity: Identity) -> None:
        is_open = identity.principal == EVERYBODY.name
        self._principal: Principal = EVERYBODY if is_open else principal_of(identity.principal, identity.grants)
        self.expires_at_ms = identity.expires_at_ms

    @property
    def name(self) -> str:
        return self._principal.name

    def observes(self, namespace: str) -> bool:
        return bool(self._principal.match(namespace) & Permission.OBSERVE)

    def reads(self, namespace: str) -> bool:
        return bool(self._principal.match(namespace) & Permission.READ)

    def alters(self, namespace: str) -> bool:
        return bool(self._principal.match(namespace) & Permission.ALTER)

    def manages(self, namespace: str) -> bool:
        return bool(self._principal.match(namespace) & Permission.MANAGE)

    @property
    def watches(self) -> bool:
        return bool(self._principal.cluster & Permission.WATCH)

    @property
    def operates(self) -> bool:
        return bool(self._principal.cluster & Permission.OPERATE)

    @property
    def audits(self) -> bool:
        return bool(self._principal.cluster & Permission.ACCESS)


class Viewer:
    """A person who is signed in. Its clients are closed with it."""

    def __init__(self, clients: ClientPair, monotonic_ms: Callable[[], int]) -> None:
        self._clients = clients
        self.admin, self.queue = clients
        self._monotonic_ms = monotonic_ms
        self._rights: Rights | None = None
        self._known_at_ms = 0

    async def rights(self) -> Rights:
        """Return the rights, which are at most 2 s old.

        Raises PermissionDeniedError once the credential has ended, and other FoqsErrors while no host answers.
        """
        now_ms = self._monotonic_ms()
        if self._rights is None or now_ms - self._known_at_ms >= RIGHTS_MS_MAX:
            self._rights = Rights(await self.admin.who_am_i())
            self._known_at_ms = now_ms
        return self._rights

    async def close(self) -> None:
        await self._clients.close()


async def signed_in(clients: ClientPair, monotonic_ms: Callable[[], int], expected: str = "") -> Viewer:
    """Return the viewer whom the hosts take the clients for; `expected` is the name that its principal must have.

    Raises PermissionDeniedError, InvalidArgumentError for another principal, and other FoqsErrors without an answer.
    """
    viewer = Viewer(clients, monotonic_ms)
    try:
        found = await viewer.rights()
        if expected and found.name not in (expected, EVERYBODY.name):
            raise PermissionDeniedError(f"the token is of {found.name}, and the configuration names {expected}")
    except FoqsError:
        await viewer.close()
        raise
    return viewer
