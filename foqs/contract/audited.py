"""The audited verbs, and the content of a record of a request: names and settings, never a payload or a secret."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any

from foqs.contract.names import FIELDS, Checked
from foqs.contract.permissions import Permission
from foqs.contract.verbs import VERBS
from foqs.model import limits
from foqs.model.audit import CHANGES_BYTES_MAX, SUBJECT_BYTES_MAX, clipped
from foqs.model.namespace import is_namespace_name

SettingsOf = Callable[[str], Any]
"""Returns the settings of a namespace as they are, or None for an unknown name."""


class AuditKind(Enum):
    CHANGE = auto()
    """The call changes the cluster, a namespace, a policy, or permissions."""
    OF_ITEMS = auto()
    """The call changes stored items: there can be many, so those of one caller and topic are summed up."""
    READ = auto()
    """The call shows payloads without a lease."""


_CHANGES = Permission.ALTER | Permission.MANAGE | Permission.OPERATE | Permission.ACCESS
_SETTLEMENTS = frozenset({"ack", "nack", "extendLease"})
_OF_ITEMS = _SETTLEMENTS | {"deleteItems", "forgetDedupIds", "redriveDeadLetters", "purgeDeadLetters"}
_ONLY_SHOWS = ("get", "list")
_UNSAID = frozenset({"page_token", "limit", "token"})
"""Fields that say nothing of the change, or must not be recorded."""
PARTS_MAX = 256
"""Records of one call. Those of the greatest batch of policies with ASCII names fit, unless each has a long reason."""
_PART_BYTES = 40
"""Room for the number of a part, and for the count of the cut elements."""
_LIST_SAID_MAX = limits.BATCH_ITEMS_MAX
"""Elements of a list that are said: a call with more does nothing."""
_TEXT_CHARS_MAX = 256
"""Every name is shorter; a longer text, such as a reason, is cut."""
_TEXT_CHARS_SEEN = 4_096
_TOKEN = re.compile(r"(foqs_[a-z2-7]{12})_\S+")


def _kind_of(name: str, needs: Permission) -> AuditKind | None:
    if needs & Permission.READ:
        return AuditKind.READ
    if not needs & _CHANGES or name.startswith(_ONLY_SHOWS):
        return None
    return AuditKind.OF_ITEMS if name in _OF_ITEMS else AuditKind.CHANGE


AUDITED: Mapping[str, AuditKind] = {
    name: kind for name, row in VERBS.items() if (kind := _kind_of(name, row.needs)) is not None
}
"""The verbs that are audited. It follows from their permissions, so that a new verb is not forgotten."""
_ALSO_NEEDED = {
    name: row.needs_also for name, row in VERBS.items() if name not in AUDITED and row.needs_also is not None
}
"""The functions whose bits decide for each request if it is audited."""
PERHAPS_AUDITED = AUDITED.keys() | _ALSO_NEEDED.keys()
"""The verbs of which some or all calls are audited."""
PERHAPS_AUDITED_IN_OPEN = PERHAPS_AUDITED - _SETTLEMENTS
"""The verbs of which some or all calls are audited while access is open. Settlements are not among them, since they
need nothing more for their content then.
"""


def audit_kind(verb: str, request: Any) -> AuditKind | None:
    """Return how a call is audited, or None if it is not. The bits that it needs for its content count as well."""
    kind = AUDITED.get(verb)
    also = _ALSO_NEEDED.get(verb) if kind is None else None
    if also is None or not also(request) & _CHANGES:
        return kind
    return AuditKind.OF_ITEMS if verb in _OF_ITEMS else AuditKind.CHANGE


def namespace_of(request: Any) -> str:
    """Return the name of the namespace that the request is of, or empty text."""
    for name, check in _fields_of(request).items():
        if check is Checked.NAMESPACE:
            value = getattr(request, name)
            return value if isinstance(value, str) else ""
    return ""


def recorded_namespace(request: Any) -> str:
    """Return the name of the namespace for a record. A text that is no name can have a secret in it, as other texts."""
    name = namespace_of(request)
    return name if is_namespace_name(name) else _without_secrets(name)


def subject_of(request: Any) -> str:
    """Return the names in the request besides its namespace, as `name=value`; of lists the length and the first one."""
    # A list of names of the cluster, such as the grants that are removed, is what changes: see changes_of.
    wanted = (Checked.INSIDE, Checked.CLUSTER)
    said = _said(request, lambda check, value: check in wanted and not _is_change(check, value))
    return clipped(" ".join(said), SUBJECT_BYTES_MAX)


def changes_of(request: Any, settings_of: SettingsOf) -> list[str]:
    """Return the values that the request sets, as `name=value`, and for settings of a namespace `name=old -> new`.

    Each element of a list is a text of its own, so a record that is too short for all ends between two elements.
    """
    said = list(_said(request, _is_change))
    settings = getattr(request, "settings", None)
    if settings is not None:
        said += _settings_said(settings, settings_of(namespace_of(request)))
    return said


def texts_of(said: Sequence[str], texts_max: int) -> list[str]:
    """Return the changes as one text, or as up to `texts_max` numbered ones. The last one counts the rest."""
    whole = " ".join(said)
    if len(whole.encode(errors="replace")) <= CHANGES_BYTES_MAX:
        return [clipped(whole, CHANGES_BYTES_MAX)]
    room, free = CHANGES_BYTES_MAX - _PART_BYTES, 0
    texts: list[list[str]] = []
    for place, one in enumerate(said):
        text = clipped(one, room)
        size = len(text.encode()) + 1
        if size <= free:
            texts[-1].append(text)
            free -= size
        elif len(texts) == texts_max:
            texts[-1].append(f"… and {len(said) - place} more")
            break
        else:
            texts.append([text])
            free = room - size
    count = len(texts)
    return [
        (f"part {number} of {count}: " if count > 1 else "") + " ".join(text) for number, text in enumerate(texts, 1)
    ]


def _fields_of(struct: Any) -> Mapping[str, Checked]:
    """The fields of a struct. Other objects that a caller in this process passes are recorded without them."""
    return FIELDS.get(type(struct).__name__, {})


def _settings_said(settings: Any, before: Any) -> Iterator[str]:
    for name in _fields_of(settings):
        value = getattr(settings, name)
        if value is None:
            continue
        old = getattr(before, name, None)
        if before is None:
            yield f"{name}={_shown(value)}"
        elif old != value:
            yield f"{name}={_shown(old)} -> {_shown(value)}"


def _is_change(check: Checked, value: object) -> bool:
    return check is Checked.CONTENT or (check is Checked.CLUSTER and isinstance(value, list))


def _said(request: Any, is_wanted: Callable[[Checked, object], bool]) -> Iterator[str]:
    for name, check in _fields_of(request).items():
        value = getattr(request, name)
        if value is None or not is_wanted(check, value) or name in _UNSAID or name == "settings":
            continue
        if isinstance(value, list):
            # The names of things in a namespace are ids by the thousand; a record has one of them.
            yield from _list_said(name, value, is_short=check is Checked.INSIDE)
        elif isinstance(value, bytes):
            continue
        elif type(value).__name__ in FIELDS:
            yield f"{name}={_element(value)}"
        else:
            yield f"{name}={_shown(value)}"


def _list_said(name: str, values: Sequence[Any], *, is_short: bool) -> Iterator[str]:
    """The length of a list and its elements. A name that is there several times is said once."""
    head = f"{name}[{len(values)}]"
    if not values:
        yield head
        return
    different = list(dict.fromkeys(values)) if all(isinstance(value, str) for value in values) else values
    for place, value in enumerate(different[:1] if is_short else different):
        shown = _element(value) if place < _LIST_SAID_MAX else "…"
        yield shown if place else f"{head}={shown}"


def _element(value: Any) -> str:
    if type(value).__name__ in FIELDS:
        return f"({' '.join(_said(value, lambda check, value: True))})"
    return _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return repr(_without_secrets(value))
    if isinstance(value, Enum):
        return value.name
    return str(value)


def _without_secrets(text: str) -> str:
    """The beginning of a text, without secrets that people put into texts by mistake: logins of addresses, and whole
    tokens.
    """
    seen = text[:_TEXT_CHARS_SEEN]
    if "@" in seen or len(text) > _TEXT_CHARS_SEEN:
        # A password can have any character in it, so all before the last @ is taken for the login.
        scheme, slashes, rest = seen.partition("://")
        if slashes:
            seen = f"{scheme}://***@{rest.rpartition('@')[2] if len(text) <= _TEXT_CHARS_SEEN else ''}"
        elif ":" in seen.rpartition("@")[0]:
            seen = f"***@{seen.rpartition('@')[2]}"
    seen = _TOKEN.sub(r"\1_***", seen)
    return seen if len(seen) <= _TEXT_CHARS_MAX else seen[:_TEXT_CHARS_MAX] + "…"
