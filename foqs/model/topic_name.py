"""The hidden names of topics: a consumer group of a topic is a topic by itself, whose name no caller can give.

So is a keyed topic: it has those items of its base, which is a topic or a group, that were given the same ordering
key, or the same fairness key. Names of callers have no control characters, so these are free for the parts of a hidden
name. This module alone knows them.
"""

from __future__ import annotations

import re
from zlib import crc32

from foqs.model import limits
from foqs.model.errors import InvalidArgumentError, shown

GROUP_BYTES_MAX = 64
"""The longest name of a group, in bytes of UTF-8."""
_GROUP_MARK = "\x1f"
"""Separates a topic from its group."""
KEY_BUCKETS_MAX = 4_096
"""The most buckets that the ordering keys of a topic can share."""
ORDERING_KEY_BYTES_MAX = 128
"""The longest ordering key, in bytes of UTF-8."""
_ORDERED_MARK = "\x1d"
"""Separates the base from the ordering key of a keyed topic, which is serial."""
FAIRNESS_KEY_BYTES_MAX = 64
"""The longest fairness key, in bytes of UTF-8."""
_FAIR_MARK = "\x1c"
"""Separates the base from the fairness key of a keyed topic, which is not serial."""
_KEY_MARKS = re.compile(f"[{_FAIR_MARK}{_ORDERED_MARK}]")
"""The marks of all kinds of keyed topics. They sort before that of a group, so that a base precedes its keyed topics,
and these precede all else.
"""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def hidden(topic: str, group: str | None) -> str:
    """Return the name of the topic that holds the items of this group. The group "" has the topic itself."""
    return f"{topic}{_GROUP_MARK}{group}" if group else topic


def parts(name: str) -> tuple[str, str]:
    """Return the topic and the group of a hidden name, also of that of a keyed topic."""
    topic, _, group = base_of(name).partition(_GROUP_MARK)
    return topic, group


def is_hidden(name: str) -> bool:
    """Return True for a name that no caller can give."""
    return _CONTROL.search(name) is not None


def described(name: str) -> str:
    """Return the parts of a hidden name as callers see them, for a message."""
    topic, group = parts(name)
    ordering_key, fairness_key = ordering_key_of(name), fairness_key_of(name)
    of_key = "" if ordering_key is None else f"ordering key {ordering_key!r} of "
    if fairness_key is not None:
        of_key = f"fairness key {fairness_key!r} of "
    return f"{of_key}group {group!r} of topic {topic!r}" if group else f"{of_key}topic {topic!r}"


# ---- keyed topics ----


def ordered(base: str, ordering_key: str) -> str:
    """Return the name of the keyed topic that has the items of this ordering key of a base, by its hidden name."""
    return f"{base}{_ORDERED_MARK}{ordering_key}"


def bucketed(base: str, ordering_key: str, key_buckets: int) -> str:
    """Return the name of the keyed topic for an ordering key of a base whose keys share `key_buckets` buckets."""
    bucket = crc32(ordering_key.encode()) % key_buckets
    return ordered(base, sequence_named(None, f"{bucket}/{key_buckets}"))


def fair(base: str, fairness_key: str) -> str:
    """Return the name of the keyed topic that has the items of this fairness key of a base, by its hidden name."""
    return f"{base}{_FAIR_MARK}{fairness_key}"


def is_keyed(name: str) -> bool:
    """Return True for the name of a keyed topic."""
    return _ORDERED_MARK in name or _FAIR_MARK in name


def is_ordered(name: str) -> bool:
    """Return True for the name of a keyed topic that is serial, for an ordering key."""
    return _ORDERED_MARK in name


def is_fair(name: str) -> bool:
    """Return True for the name of a keyed topic that has turns, for a fairness key."""
    return _FAIR_MARK in name


def base_of(name: str) -> str:
    """Return the base of a keyed topic, by its hidden name; any other name is its own base."""
    return name.partition(_FAIR_MARK)[0].partition(_ORDERED_MARK)[0]


def in_group(name: str, copy: str) -> str:
    """Return the name that has the key of the topic `name`, if it has one, and the base `copy`."""
    mark = _KEY_MARKS.search(name)
    return copy if mark is None else copy + name[mark.start() :]


def of_topic(name: str) -> str:
    """Return the name without the group: of the topic itself, or of its keyed topic with this key."""
    return in_group(name, parts(name)[0])


def sequence_of(name: str) -> str:
    """Return the text by which the keyed topics of a base differ and are sorted: a key, or a bucket of keys."""
    mark = _KEY_MARKS.search(name)
    if mark is None:
        return ""
    return name[mark.end() if mark[0] == _ORDERED_MARK else mark.start() :]


def in_sequence(base: str, sequence: str) -> str:
    """Return the name of the keyed topic with this text of `sequence_of`; for "" a name that precedes them all."""
    if not sequence:
        return f"{base}{_FAIR_MARK}"
    return f"{base}{sequence}" if sequence.startswith(_FAIR_MARK) else ordered(base, sequence)


def ordering_key_of(name: str) -> str | None:
    """Return the ordering key of a keyed topic, or None, also for a bucket of keys."""
    sequence = name.partition(_ORDERED_MARK)[2]
    return sequence if sequence and not sequence.startswith(_ORDERED_MARK) else None


def bucket_of(name: str) -> str | None:
    """Return the bucket of a keyed topic, as "17/64" of 64 buckets; None for another topic."""
    mark, has_mark, bucket = name.partition(_ORDERED_MARK)[2].partition(_ORDERED_MARK)
    return bucket if has_mark and not mark else None


def key_buckets_of(name: str) -> int:
    """Return the number of buckets by which a keyed topic was chosen; 0 for one of a single key."""
    bucket = bucket_of(name)
    return 0 if bucket is None else int(bucket.partition("/")[2])


def fairness_key_of(name: str) -> str | None:
    """Return the fairness key of a keyed topic, or None."""
    return name.partition(_FAIR_MARK)[2] or None


def without_fairness_key(name: str) -> str:
    """Return the base of a keyed topic of a fairness key; any other name, also of an ordering key, is unchanged."""
    return name.partition(_FAIR_MARK)[0]


def sequence_named(ordering_key: str | None, bucket: str | None, fairness_key: str | None = None) -> str:
    """Return the text of `sequence_of` for the key or the bucket of an item; "" for an item without one."""
    if fairness_key:
        return f"{_FAIR_MARK}{fairness_key}"
    return ordering_key or ("" if bucket is None else f"{_ORDERED_MARK}{bucket}")


def check_length(name: str) -> None:
    """Check the length of the name of a keyed topic of a group. Raises InvalidArgumentError."""
    size_bytes = len(name.encode())
    if size_bytes > limits.TOPIC_BYTES_MAX:
        raise InvalidArgumentError(
            f"{described(name)} needs {size_bytes} bytes, with one between each two, and the limit is "
            f"{limits.TOPIC_BYTES_MAX}: use a shorter key, or shorter names"
        )


def ordering_key_fault(ordering_key: object, topic: str) -> InvalidArgumentError | None:
    """Return the error of an invalid ordering key of a topic whose name is valid, or None."""
    return _key_fault("ordering_key", ordering_key, topic, ORDERING_KEY_BYTES_MAX)


def fairness_key_fault(fairness_key: object, topic: str) -> InvalidArgumentError | None:
    """Return the error of an invalid fairness key of a topic whose name is valid, or None."""
    return _key_fault("fairness_key", fairness_key, topic, FAIRNESS_KEY_BYTES_MAX)


def _key_fault(field: str, key: object, topic: str, bytes_max: int) -> InvalidArgumentError | None:
    is_text = isinstance(key, str) and bool(key) and not _CONTROL.search(key)
    if not isinstance(key, str) or not is_text or len(key.encode()) > bytes_max:
        return InvalidArgumentError(
            f"{field} {shown(key)} must be text of 1 to {bytes_max} bytes without control characters"
        )
    size_bytes = len(topic.encode()) + 1 + len(key.encode())
    if size_bytes > limits.TOPIC_BYTES_MAX:
        return InvalidArgumentError(
            f"topic and {field} need {size_bytes} bytes together, with one between them, and the limit is "
            f"{limits.TOPIC_BYTES_MAX}: use a shorter key, or a shorter name for the topic"
        )
    return None


def is_of_group(name: str) -> bool:
    """Return True for the hidden name of a group other than ""."""
    return _GROUP_MARK in name


def group_range(topic: str) -> tuple[str, str]:
    """Return the bounds of the hidden names of all groups of a topic other than "", of which the second is beyond."""
    return f"{topic}{_GROUP_MARK}", f"{topic}{chr(ord(_GROUP_MARK) + 1)}"


def check_group(group: object, topic: str) -> str:
    """Check the name of a group of a topic whose name is valid. Raises InvalidArgumentError."""
    if not isinstance(group, str) or _CONTROL.search(group) or len(group.encode()) > GROUP_BYTES_MAX:
        raise InvalidArgumentError(
            f"group {shown(group)} must be text of up to {GROUP_BYTES_MAX} bytes without control characters"
        )
    size_bytes = len(hidden(topic, group).encode())
    if size_bytes > limits.TOPIC_BYTES_MAX:
        raise InvalidArgumentError(
            f"topic and group need {size_bytes} bytes together, with one between them, and the limit is "
            f"{limits.TOPIC_BYTES_MAX}: use a shorter name for the topic or the group"
        )
    return group
