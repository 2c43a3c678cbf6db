"""Actions on all items that match a filter: they are counted first, and no more than were counted are changed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from foqs.client.aio import AsyncAdminClient
from foqs.console.asked import Asked, namespace_url, topic_url
from foqs.console.command_lines import option
from foqs.console.jobs_page import conditions
from foqs.console.offers import Done, Field, Inputs, Offer, line
from foqs.console.texts import number
from foqs.console.topic_filter import parsed_filter
from foqs.model import limits
from foqs.model.bulk_work import BulkAction
from foqs.model.calls import ItemState
from foqs.model.errors import InvalidArgumentError
from foqs.model.item_filter import TOPICS_MAX, ItemFilter
from foqs.model.jobs import Job, JobState

UNDO_MS: Final = limits.MINUTE_MS
"""The delay of redriven items in which they can be buried again."""
_UNLEASED: Final = (ItemState.READY, ItemState.DELAYED, ItemState.DEAD)
_ALL: Final = tuple(ItemState)
_RATE: Final = Field(
    "rate", "Rate", "0", "--items-per-second-max",
    choices=(("0", "That of the action"), ("100", "100 items a second"), ("500", "500 items a second"),
             ("2000", "2,000 items a second"), ("10000", "10,000 items a second")),
)  # fmt: skip
_IN: Final = Field(
    "in", "Deliver", "60s", "--in", choices=(("60s", "In 60 s: Undo is possible until then"), ("", "At once: no undo")),
)  # fmt: skip
_REASON: Final = Field("reason", "Reason", hint="Kept with the job.")


@dataclass(frozen=True, slots=True)
class Selection:
    """The items of an action: a filter that new items do not join, and its words on the command line."""

    namespace: str
    action: BulkAction
    filter: ItemFilter
    words: str
    typed: str
    back: str
    other: tuple[str, str] | None

    @property
    def verb(self) -> str:
        return "Redrive" if self.action is BulkAction.REDRIVE else "Delete"

    def facts(self) -> list[tuple[str, str]]:
        """Return the filter in words."""
        return [("Namespace", self.namespace), *conditions(self.filter)]

    def command(self, items_max: int | None = None) -> str:
        """Return the command line that selects the same."""
        chosen, options = self.filter, list[str]()
        for topic in chosen.topics:
            options += ["--topic", topic]
        options += option("--topic-prefix", chosen.topic_prefix)
        if self.action is BulkAction.DELETE:
            for state in chosen.states:
                options += ["--state", state.name.lower()]
        options += option("--error-contains", chosen.error_contains)
        for name, bound_ms in (("died", chosen.died_before_ms), ("enqueued", chosen.enqueued_before_ms)):
            if bound_ms is not None:
                at = datetime.fromtimestamp(bound_ms / 1_000, UTC).replace(tzinfo=None)
                options += [f"--{name}-before", at.isoformat(timespec="milliseconds")]
        options += option("--items-max", items_max)
        return line(["item", self.verb.lower()], [self.namespace], options)


def selection_of(asked: Asked, action: str) -> Selection:
    """Return the selection of a request. Raises InvalidArgumentError if it is none, or names too many topics."""
    namespace, topic = asked.namespace, asked.query.get("topic", "")
    is_redrive = action == "redrive"
    bulk = BulkAction.REDRIVE if is_redrive else BulkAction.DELETE
    states = _states_of(asked, action)
    is_dead_alone = is_redrive or states == (ItemState.DEAD,)
    chosen: dict[str, Any] = {
        "states": states,
        "error_contains": asked.query.get("error", ""),
        "died_before_ms" if is_dead_alone else "enqueued_before_ms": asked.now_ms,
    }
    if topic:
        chosen["topics"] = (topic,)
        words, back = topic, topic_url(namespace, topic, tab="dead" if is_dead_alone else None)
    else:
        chosen |= _topics_of(asked)
        words = f"all topics that match {asked.query.get('filter') or asked.query.get('show') or 'everything'}"
        back = namespace_url(namespace, "topics", filter=asked.query.get("filter"), show=asked.query.get("show"))
    kept = {key: value for key, value in asked.query.items() if key in ("topic", "filter", "show", "error")}
    other = None
    if action == "redrive":
        other = ("Delete instead…", namespace_url(namespace, "act/delete", state="dead", **kept))
    elif states == (ItemState.DEAD,):
        other = ("Redrive instead…", namespace_url(namespace, "act/redrive", **kept))
    typed = "" if is_redrive else topic or namespace
    return Selection(namespace, bulk, ItemFilter(**chosen), words, typed, back, other)


def _states_of(asked: Asked, action: str) -> tuple[ItemState, ...]:
    if action == "redrive":
        return (ItemState.DEAD,)
    if action == "purge":
        return _ALL
    name = asked.query.get("state", "").upper()
    if not name:
        return _UNLEASED
    if name not in ItemState.__members__:
        raise InvalidArgumentError(f"state {name.lower()!r:.40} is none")
    return (ItemState[name],)


def _topics_of(asked: Asked) -> dict[str, Any]:
    """Return the condition on topics of a filter of the list of topics."""
    chosen = parsed_filter(asked.query.get("filter", ""), asked.query.get("show", "").split(","))
    if chosen.prefix is not None or chosen.is_empty:
        return {"topic_prefix": chosen.prefix or ""}
    index = asked.poller.indexes.get(asked.namespace)
    rows = [] if index is None else chosen.chosen(index.rows.values(), asked.now_ms)
    names = sorted({row.name for row in rows})
    if not names:
        raise InvalidArgumentError("no topic matches the filter: nothing can be selected")
    if len(names) > TOPICS_MAX:
        raise InvalidArgumentError(
            f"the filter matches {number(len(names))} topics, and an action names {TOPICS_MAX} at most: narrow it, or "
            "filter by a prefix alone, such as pay*"
        )
    return {"topics": tuple(names)}


async def begin_count(admin: AsyncAdminClient, selection: Selection) -> Job:
    """Begin the job that counts the items of a selection."""
    return await admin.create_bulk_job(
        selection.namespace, BulkAction.COUNT, selection.filter, detail=f"counts for {selection.verb.lower()} (console)"
    )


def counted_offer(selection: Selection, count: int) -> Offer:
    """Offer to act on exactly the items that were counted."""
    is_redrive = selection.action is BulkAction.REDRIVE

    async def do(admin: AsyncAdminClient, inputs: Inputs, now_ms: int) -> Done:
        until_ms = now_ms + UNDO_MS if inputs.get("in") == "60s" else None
        job = await admin.create_bulk_job(
            selection.namespace,
            selection.action,
            selection.filter,
            deliver_after_ms=until_ms,
            items_max=count,
            items_per_second_max=int(inputs["rate"]),
            detail=f"{inputs['reason']} (console)".strip(),
        )
        return Done(f"{selection.verb} of {number(count)} items has begun.", job)

    words = "item" if count == 1 else "items"
    note = "Stops by itself if more items match than were counted."
    if is_redrive:
        note += " With a delay they become ready together: until then Undo makes all of them dead letters again."
    else:
        note += " Their payloads are lost, and nothing undoes it."
        if ItemState.LEASED in selection.filter.states:
            note += " Acks of items under lease will get STALE_LEASE."
    return Offer(
        title=f"{selection.verb}: {selection.words}",
        button=f"{selection.verb} {number(count)} {words}",
        facts=selection.facts(),
        fields=((_IN, _RATE, _REASON) if is_redrive else (_RATE, _REASON)),
        command=selection.command(count),
        do=do,
        back=selection.back,
        is_danger=not is_redrive,
        typed=selection.typed,
        note=note,
        other=selection.other,
        count=count,
    )


def job_offer(asked: Asked, action: str) -> Offer:
    """Offer to pause, resume, cancel or undo a bulk job."""
    namespace, job_id = asked.namespace, asked.query.get("job", "")
    states = {"pause": JobState.PAUSED, "resume": JobState.RUNNING, "cancel": JobState.CANCELLED}

    async def do(admin: AsyncAdminClient, _: Inputs, now_ms: int) -> Done:
        if action == "undo":
            return Done("The undo has begun.", await admin.undo_bulk_job(namespace, job_id))
        return Done(
            f"The job is {states[action].name.lower()}.",
            await admin.update_job(namespace, job_id, state=states[action]),
        )

    notes = {"cancel": "Items that it has changed stay so.", "undo": "Its items become dead letters again."}
    return Offer(
        title=f"{action.capitalize()} a job", button=f"{action.capitalize()} the job", do=do,
        facts=[("Namespace", namespace), ("Job", job_id)], command=line(["job", action], [namespace, job_id]),
        note=notes.get(action, ""), back=namespace_url(namespace, f"jobs/{job_id}"), is_danger=action == "cancel",
    )  # fmt: skip
