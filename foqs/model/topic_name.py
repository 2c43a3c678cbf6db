"""The hidden names of topics: a consumer group of a topic is a topic by itself, whose name no caller can give.

Names of callers have no control characters, so these are free for the parts of a hidden name. This module alone knows
them.
"""

from __future__ import annotations

import re

from foqs.model import limits
from foqs.model.errors import InvalidArgumentError, shown

GROUP_BYTES_MAX = 64
"""The longest name of a group, in bytes of UTF-8."""
_GROUP_MARK = "\x1f"
"""Separates a topic from its group."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def hidden(topic: str, group: str | None) -> str:
    """Return the name of the topic that holds the items of this group. The group "" has the topic itself."""
    return f"{topic}{_GROUP_MARK}{group}" if group else topic


def parts(name: str) -> tuple[str, str]:
    """Return the topic and the group of a hidden name."""
    topic, _, group = name.partition(_GROUP_MARK)
    return topic, group


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
