"""A request for a page, with all that the makers of pages look at; and the page that they make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from foqs.console.poller import Poller
from foqs.console.sessions import BrowserSession
from foqs.console.viewers import Rights
from foqs.model.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a viewer who is signed in."""

    path: str
    query: dict[str, str]
    session: BrowserSession
    rights: Rights
    poller: Poller
    now_ms: int
    allows_actions: bool
    hides_payloads: bool
    namespace: str = ""

    @property
    def namespaces(self) -> list[str]:
        """The namespaces that the viewer can observe, by name."""
        return sorted(name for name in self.poller.namespaces if self.rights.observes(name))

    @property
    def acts(self) -> bool:
        """True if the viewer can change items and policies of the namespace here."""
        return self.allows_actions and self.rights.alters(self.namespace)

    def with_query(self, **changes: object) -> str:
        """Return the URL of this page with other parameters; one that is None or empty is left out."""
        return with_parameters(self.path, {**self.query, **changes})


@dataclass(slots=True)
class ConsolePage:
    """A page: a template, its title and its values, and the document that programs get in its place."""

    template: str
    title: str
    section: str
    values: dict[str, Any] = field(default_factory=dict)
    document: object = None
    status: int = 200


def with_parameters(path: str, parameters: dict[str, Any]) -> str:
    """Return a URL of this site. Parameters that are None or empty are left out."""
    kept = {key: value for key, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept)}" if kept else path


def topic_url(namespace: str, topic: str, group: str = "", **parameters: object) -> str:
    """Return the URL of a topic. Names that a path cannot have, as browsers read it, are parameters."""
    is_plain = topic not in (".", "..") and not topic.endswith(".json") and "/" not in topic and "\\" not in topic
    base = f"/ns/{quote(namespace, safe='')}/topic"
    if is_plain:
        return with_parameters(f"{base}/{quote(topic, safe='')}", {"group": group, **parameters})
    return with_parameters(base, {"name": topic, "group": group, **parameters})


def item_url(namespace: str, item_id: str) -> str:
    """Return the URL of an item."""
    return f"/ns/{quote(namespace, safe='')}/item/{quote(item_id, safe='')}"


def namespace_url(namespace: str, page: str, **parameters: object) -> str:
    """Return the URL of a page of a namespace."""
    return with_parameters(f"/ns/{quote(namespace, safe='')}/{page}", parameters)


def checked_namespace(asked: Asked) -> str:
    """Return the namespace of the page. Raises NotFoundError for one that the viewer cannot observe, or does not exist.

    Both have one message, so that nobody learns which namespaces exist.
    """
    if not asked.rights.observes(asked.namespace) or asked.namespace not in asked.poller.namespaces:
        raise NotFoundError(f"namespace {asked.namespace!r:.80} does not exist, or you cannot observe it")
    return asked.namespace
