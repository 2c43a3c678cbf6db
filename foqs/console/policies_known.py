"""The policies of the topics of a namespace, as the console knows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from foqs.model.policy import TopicPolicy, TopicPolicyEntry
from foqs.model.topic_name import hidden

_DEFAULTS: Final = TopicPolicy()


class PoliciesKnown:
    """The policies of topics and prefixes. It finds that of a topic without a look at each prefix."""

    def __init__(self, entries: Iterable[TopicPolicyEntry] = ()) -> None:
        self._prefixes: dict[str, TopicPolicyEntry] = {}
        self._topics: dict[str, TopicPolicyEntry] = {}
        for one in entries:
            if one.is_prefix:
                self._prefixes[one.topic] = one
            else:
                self._topics[hidden(one.topic, one.group)] = one
        self._lengths = sorted({len(prefix) for prefix in self._prefixes}, reverse=True)

    def policy_of(self, topic: str, group: str | None = None) -> TopicPolicy:
        """Return the policy in force of a topic, or of one of its groups."""
        own = self._topics.get(hidden(topic, group))
        if own is not None:
            return own
        for length in self._lengths:
            found = self._prefixes.get(topic[:length])
            if found is not None and len(topic) >= length:
                return found
        return _DEFAULTS
