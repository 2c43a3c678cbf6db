"""The actions by their names in URLs: each makes an offer, or a selection that is counted first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from foqs.console import topic_actions as single
from foqs.console.asked import Asked, checked_namespace
from foqs.console.bulk_actions import Selection, job_offer, selection_of
from foqs.console.offers import Offer
from foqs.model.errors import NotFoundError, PermissionDeniedError

MakeOffer = Callable[[Asked], Offer | Awaitable[Offer]]
_OFFERS: Final[dict[str, MakeOffer]] = {
    "pause": single.pause_offer,
    "resume": single.resume_offer,
    "limits": single.limits_offer,
    "release": single.release_offer,
    "delete-item": single.delete_item_offer,
    "redrive-item": single.redrive_item_offer,
    "job-pause": lambda asked: job_offer(asked, "pause"),
    "job-resume": lambda asked: job_offer(asked, "resume"),
    "job-cancel": lambda asked: job_offer(asked, "cancel"),
    "job-undo": lambda asked: job_offer(asked, "undo"),
}
_OF_NAMESPACES: Final[dict[str, MakeOffer]] = {
    "namespace-pause": single.namespace_pause_offer,
    "namespace-resume": single.namespace_resume_offer,
}
_OF_CLUSTER: Final[dict[str, MakeOffer]] = {
    "shard-drain": lambda asked: single.shard_offer(asked, "drain"),
    "shard-serve": lambda asked: single.shard_offer(asked, "serve"),
    "shard-move": lambda asked: single.shard_offer(asked, "move"),
}
COUNTED: Final = ("redrive", "delete", "purge")


async def offered(asked: Asked, action: str) -> Offer | Selection:
    """Return the offer of an action, or the selection that is to be counted before.

    Raises PermissionDeniedError if the viewer cannot do it here, NotFoundError for an unknown action.
    """
    if not asked.allows_actions:
        raise PermissionDeniedError("this console is read only: it was started without --allow-actions")
    make = _OF_CLUSTER.get(action)
    if make is not None:
        _check(asked.rights.operates, "the role operator")
    else:
        namespace = checked_namespace(asked)
        make = _OF_NAMESPACES.get(action)
        if make is not None:
            _check(asked.rights.manages(namespace), f"the role owner in {namespace}")
        else:
            _check(asked.rights.alters(namespace), f"the role owner in {namespace}")
            if action in COUNTED:
                return selection_of(asked, action)
            make = _OFFERS.get(action)
    if make is None:
        raise NotFoundError(f"action {action!r:.40} is not known")
    offer = make(asked)
    return offer if isinstance(offer, Offer) else await offer


def _check(is_held: bool, role: str) -> None:
    if not is_held:
        raise PermissionDeniedError(f"for this action you need {role}")
