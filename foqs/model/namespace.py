"""A namespace: the tenant, the unit of quota, with its limits and defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from foqs.model import limits
from foqs.model.errors import FoqsError, InvalidArgumentError, UnavailableError, shown

_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.NAMESPACE_NAME_CHARS_MAX}}}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceSettings:
    """The limits of a namespace and the defaults of its items; docs/configuration.md has their bounds."""

    enqueues_per_minute_max: int = limits.ENQUEUES_PER_MINUTE_DEFAULT
    payload_bytes_max: int = limits.PAYLOAD_BYTES_DEFAULT
    metadata_bytes_max: int = limits.METADATA_BYTES_DEFAULT
    batch_items_max: int = limits.BATCH_ITEMS_MAX
    lease_ms_default: int = limits.LEASE_MS_DEFAULT
    lease_ms_max: int = limits.LEASE_MS_MAX
    delay_ms_max: int = limits.DELAY_MS_MAX
    ttl_ms_default: int = limits.TTL_MS_DEFAULT
    ttl_ms_max: int = limits.TTL_MS_MAX
    attempts_max: int = limits.ATTEMPTS_DEFAULT
    enqueue_paused: bool = False
    dequeue_paused: bool = False


SETTING_BOUNDS: dict[str, tuple[int, int]] = {
    "enqueues_per_minute_max": (1, limits.ENQUEUES_PER_MINUTE_MAX),
    "payload_bytes_max": (0, limits.PAYLOAD_BYTES_MAX),
    "metadata_bytes_max": (0, limits.METADATA_BYTES_MAX),
    "batch_items_max": (1, limits.BATCH_ITEMS_MAX),
    "lease_ms_default": (limits.LEASE_MS_MIN, limits.LEASE_MS_MAX),
    "lease_ms_max": (limits.LEASE_MS_MIN, limits.LEASE_MS_MAX),
    "delay_ms_max": (0, limits.DELAY_MS_MAX),
    "ttl_ms_default": (1, limits.TTL_MS_MAX),
    "ttl_ms_max": (1, limits.TTL_MS_MAX),
    "attempts_max": (1, limits.ATTEMPTS_MAX),
}


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace as it is stored.

    Its number stands in the rows of the shards and is never used for another namespace.
    """

    number: int
    name: str
    settings: NamespaceSettings
    created_at_ms: int
    closing: bool = False
    """It is being deleted, and lets no item in meanwhile."""
    former_name: str = ""
    """The name that the shards know its number by, if it was recovered under another one."""

    def is_known_as(self, name: str) -> bool:
        """Whether items that a shard stored under this number and `name` are its own."""
        return name in (self.name, self.former_name)


class SettingsTable:
    """What shards and the dispatcher read of namespaces, by number. `Namespaces` of the host keeps it up to date."""

    __slots__ = ("by_number", "dequeue_paused", "item_bytes_seen")

    def __init__(self) -> None:
        self.by_number: Mapping[int, Namespace] = {}
        """All namespaces at one time: replaced, never changed, so that any thread may do so."""
        self.dequeue_paused: frozenset[int] = frozenset()
        """The numbers of those whose dequeues are paused."""
        self.item_bytes_seen: dict[int, int] = {}
        """The largest item that was claimed, by namespace, if it was larger than what is allowed now."""

    def replace(self, by_number: Mapping[int, Namespace]) -> None:
        """Let these be all namespaces from now on."""
        self.dequeue_paused = frozenset(number for number, found in by_number.items() if found.settings.dequeue_paused)
        self.by_number = by_number

    def attempts_max(self, number: int) -> int:
        namespace = self.by_number.get(number)
        return limits.ATTEMPTS_DEFAULT if namespace is None else namespace.settings.attempts_max

    def item_bytes_max(self, number: int) -> int:
        """The most that the content of one item of the namespace may have."""
        namespace = self.by_number.get(number)
        allowed_bytes = limits.CONTENT_BYTES_MAX
        if namespace is not None:
            # The rest of the content has the same bound in every namespace.
            allowed_bytes -= limits.PAYLOAD_BYTES_MAX - namespace.settings.payload_bytes_max
            allowed_bytes -= limits.METADATA_BYTES_MAX - namespace.settings.metadata_bytes_max
        return max(allowed_bytes, self.item_bytes_seen.get(number, 0))

    def note_item_bytes(self, number: int, size_bytes: int) -> None:
        """An item was claimed that has so many: those of the namespace that are still to be read may have as many."""
        if size_bytes > self.item_bytes_max(number):
            self.item_bytes_seen[number] = size_bytes


def number_in_use(namespace: Namespace, name: str, shard_id: int) -> FoqsError:
    """The shard has items of `name` under the number of `namespace`, as only a meta database that lost its past does.

    Neither may see the other's items, so the host serves none.
    """
    return UnavailableError(
        f"namespace {namespace.name!r} has number {namespace.number}, under which shard {shard_id} holds items of "
        f"{name!r}: nothing was done; see the operations guide, Restoring the meta database",
        nothing_done=True,
    )


def check_namespace_name(name: object) -> str:
    """Return the name, or raise InvalidArgumentError."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"namespace name {shown(name)} is not valid: "
            f"use 1 to {limits.NAMESPACE_NAME_CHARS_MAX} of A-Z a-z 0-9 . _ -"
        )
    return name


def with_changes(settings: NamespaceSettings, changes: object | None) -> NamespaceSettings:
    """`settings` with every field of `changes` that is not None, all of them checked.

    Raises InvalidArgumentError that names every field out of its bounds.
    """
    given = {f.name: value for f in fields(settings) if (value := getattr(changes, f.name, None)) is not None}
    problems = []
    for name, value in given.items():
        bounds = SETTING_BOUNDS.get(name)
        if bounds is None:
            if not isinstance(value, bool):
                problems.append(f"{name} {value!r} is not a bool")
        elif not isinstance(value, int) or not bounds[0] <= value <= bounds[1]:
            problems.append(f"{name} {value!r} is not within {bounds[0]}..{bounds[1]}")
    if not problems:
        changed = replace(settings, **given)
        if changed.lease_ms_default > changed.lease_ms_max:
            problems.append(f"lease_ms_default {changed.lease_ms_default} is over lease_ms_max {changed.lease_ms_max}")
        if changed.ttl_ms_default > changed.ttl_ms_max:
            problems.append(f"ttl_ms_default {changed.ttl_ms_default} is over ttl_ms_max {changed.ttl_ms_max}")
    if problems:
        raise InvalidArgumentError("namespace settings: " + "; ".join(problems))
    return changed
