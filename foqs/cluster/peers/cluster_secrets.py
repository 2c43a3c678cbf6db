"""The secrets of the cluster that this host knows, while one replaces another: docs/decisions/0059-rotation.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

import structlog

from foqs.model import limits
from foqs.model.cluster import HostRow
from foqs.model.cluster_secret import ClusterSecret, KnownSecret
from foqs.model.secret import Secret
from foqs.storage.meta.meta_store import MetaStore

ENDED_PROOF_MS = 10 * limits.SECOND_MS
"""A proof by a secret that has ended is taken for this long, from hosts that have not read that yet."""
ENDED_CONNECTION_MS = limits.WAIT_MS_MAX + limits.CALL_MS_MAX + ENDED_PROOF_MS
"""A connection lasts for this long after its secret has ended, which is longer than any call between hosts."""
ENDED_MAX = 32
"""The ended secrets that are remembered. The one that ended first is dropped."""

_log = structlog.get_logger(__name__)


class _Ended(NamedTuple):
    """A secret that is in the meta database no more, and when this was read."""

    known: KnownSecret
    at_s: float


class _Known(NamedTuple):
    """All known secrets at one time. Immutable, so that the event loop can read it while a thread takes the next."""

    present: tuple[KnownSecret, ...] = ()
    """The current one, and the next one if it is proposed."""
    ended: tuple[_Ended, ...] = ()
    """The last one first."""


class ClusterSecrets:
    """Knows the secret in the meta database, the next one, and those that have just ended.

    A thread of the meta database reads them. While that is away, the host uses those that it knows.
    """

    def __init__(self, living: Callable[[], Mapping[str, HostRow]], now_s: Callable[[], float]) -> None:
        """`living` returns the living hosts by id, as far as this one knows. `now_s` is a monotonic clock."""
        self._living = living
        self._now_s = now_s
        self._known = _Known()

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids for this host's row: of the current secret, and of the next one."""
        return tuple([one.id for one in self._known.present])

    @property
    def current(self) -> Secret | None:
        """The secret for hosts of builds that know one alone; None before the first reading."""
        present = self._known.present
        return present[0].secret if present else None

    def join(self, meta: MetaStore, proposed: Secret) -> None:
        """Read them at the start. A cluster without a secret gets `proposed`. It blocks. Raises UnavailableError."""
        meta.secrets.keep(proposed)
        self.read(meta)

    def read(self, meta: MetaStore) -> tuple[str, ...]:
        """Read them again, and return their ids. It blocks, and only one thread calls it. Raises UnavailableError.

        A meta database that has lost its secret, as an empty one in its place, changes nothing here: a host that starts
        gives it one, which this host then reads.
        """
        found = meta.secrets.read()
        if found is not None:
            self._take(found)
        return self.ids

    def _take(self, found: ClusterSecret) -> None:
        before, now_s = self._known, self._now_s()
        present = found.known
        ids = {one.id for one in present}
        gone = [_Ended(one, now_s) for one in before.present if one.id not in ids]
        kept = [one for one in before.ended if one.known.id not in ids and self._is_young(one, ENDED_CONNECTION_MS)]
        self._known = _Known(present, tuple([*gone, *kept][:ENDED_MAX]))
        if self.ids != tuple([one.id for one in before.present]):
            coming = present[-1].id if found.next is not None else None
            _log.info("cluster_secret_read", secret=present[0].id, next=coming)

    def for_host(self, host_id: str) -> Sequence[KnownSecret]:
        """Return the secrets by which to prove oneself to a host, in the order in which they are tried; none before the
        first reading.

        The first one is the newest that its row says it knows. Newer ones follow, because a row is as old as the last
        reading of it, and the meta database can have been away since then. Older ones do not, so that nobody can have
        this host fall back by refusing a proof.
        """
        known = self._known
        if not known.present:
            return ()
        row = self._living().get(host_id)
        known_ids = () if row is None else row.secret_ids
        newest_first = known.present[::-1]
        ended = [one.known for one in known.ended if self._is_young(one, ENDED_PROOF_MS)]
        first = next((one for one in (*newest_first, *ended) if one.id in known_ids), known.present[0])
        newer = takewhile(lambda one: one.id != first.id, newest_first)
        return (first, *newer)

    def is_outdated(self, known_id: str, host_id: str) -> bool:
        """True if a connection to this host that was made by this secret is to be replaced by one of a newer secret."""
        wanted = self.for_host(host_id)
        # The newest one can be in use although the row does not tell yet that the host knows it.
        return bool(wanted) and known_id not in (wanted[0].id, self._known.present[-1].id)

    def accepted(self) -> Sequence[Secret]:
        """Return the secrets by which others can prove themselves now."""
        known = self._known
        ended = [one.known.secret for one in known.ended if self._is_young(one, ENDED_PROOF_MS)]
        return [*[one.secret for one in known.present], *ended]

    def is_present(self, known_id: str) -> bool:
        """True if a connection that was made by this secret can take more calls."""
        return known_id in self.ids

    def has_ended(self, known_id: str) -> bool:
        """True if a connection that was made by this secret must close."""
        known = self._known
        return not self.is_present(known_id) and not any(
            one.known.id == known_id and self._is_young(one, ENDED_CONNECTION_MS) for one in known.ended
        )

    def _is_young(self, ended: _Ended, age_ms: int) -> bool:
        return self._now_s() - ended.at_s < age_ms / 1000
