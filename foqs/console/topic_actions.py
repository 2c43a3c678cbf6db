"""Actions on topics, namespaces, consumers, single items and shards, which one call does."""

from __future__ import annotations

from typing import Any, Final

from foqs.client.aio import AsyncAdminClient
from foqs.console.asked import Asked, item_url, namespace_url, topic_url
from foqs.console.command_lines import option
from foqs.console.offers import Done, Field, Inputs, Offer, line
from foqs.model import limits
from foqs.model.cluster import ShardUse
from foqs.model.errors import InvalidArgumentError, NotFoundError
from foqs.model.policy import DEPTH_MAX, IN_FLIGHT_MAX

_REASON: Final = Field("reason", "Reason", flag="--reason", hint="Shown to callers, and kept in the audit.")
_BOTH, _DELIVERIES, _ENQUEUES = "", "--dequeue", "--enqueue"
_WHAT: Final = Field(
    "what", "Pause", value=_DELIVERIES, flag="@",
    choices=((_DELIVERIES, "Deliveries: items stay, new ones are stored"), (_ENQUEUES, "Enqueues"), (_BOTH, "Both")),
)  # fmt: skip


def _topic_of(asked: Asked) -> tuple[str, str | None]:
    topic = asked.query.get("topic", "")
    if not topic:
        raise InvalidArgumentError("no topic is named")
    return topic, asked.query.get("group") or None


def pause_offer(asked: Asked) -> Offer:
    """Offer to pause a topic."""
    namespace, (topic, group) = asked.namespace, _topic_of(asked)

    async def do(admin: AsyncAdminClient, inputs: Inputs, now_ms: int) -> Done:
        changes = _paused(inputs["what"], is_paused=True)
        await admin.set_topic_policy(namespace, topic, reason=inputs["reason"], group=group, **changes)
        return Done(f"{topic} is paused. Every host follows within two seconds.")

    what = Field("what", "Pause", _DELIVERIES, "@", choices=_WHAT.choices[:1]) if group else _WHAT
    return Offer(
        title=f"Pause {topic}", button="Pause", facts=_facts(namespace, topic, group), fields=(what, _REASON),
        command=line(["topic", "pause"], [namespace, topic], option("--group", group)), do=do,
        back=topic_url(namespace, topic, group or ""),
    )  # fmt: skip


def resume_offer(asked: Asked) -> Offer:
    """Offer to resume a topic."""
    namespace, (topic, group) = asked.namespace, _topic_of(asked)

    async def do(admin: AsyncAdminClient, _: Inputs, now_ms: int) -> Done:
        changes = _paused(_DELIVERIES if group else _BOTH, is_paused=False)
        await admin.set_topic_policy(namespace, topic, reason="", group=group, **changes)
        return Done(f"{topic} is resumed.")

    return Offer(
        title=f"Resume {topic}", button="Resume", facts=_facts(namespace, topic, group),
        command=line(["topic", "resume"], [namespace, topic], option("--group", group)), do=do,
        back=topic_url(namespace, topic, group or ""),
    )  # fmt: skip


async def limits_offer(asked: Asked) -> Offer:
    """Offer to change the limits of a topic."""
    namespace, (topic, group) = asked.namespace, _topic_of(asked)
    policy = await asked.session.viewer.admin.get_topic_policy(namespace, topic, group=group)
    before = {
        "rate": f"{policy.deliveries_per_second_max:g}", "in_flight": str(policy.in_flight_max),
        "weight": str(policy.weight), "depth": str(policy.depth_max),
    }  # fmt: skip
    options = option("--group", group)

    def field(name: str, label: str, verb: str, hint: str, bounds: tuple[float, float]) -> Field:
        return Field(name, label, before[name], line(["topic", verb], [namespace, topic], options), hint, bounds=bounds)

    fields = [
        field("rate", "Deliveries a second", "limit", "0 for no cap", (0, limits.DELIVERIES_PER_SECOND_MAX)),
        field("weight", "Weight", "weight", "its share of dequeues by prefix", (1, limits.TOPIC_WEIGHT_MAX)),
    ]
    if not group:
        fields[1:1] = [
            field("in_flight", "Items in work", "in-flight", "0 for no limit", (0, IN_FLIGHT_MAX)),
            field("depth", "Items waiting", "depth", "0 for no limit", (0, DEPTH_MAX)),
        ]

    async def do(admin: AsyncAdminClient, inputs: Inputs, now_ms: int) -> Done:
        changed = {name: text for name, text in inputs.items() if text != before[name]}
        if not changed:
            return Done("Nothing was changed.")
        await admin.set_topic_policy(namespace, topic, group=group, **_policy_of(changed))
        return Done(f"The limits of {topic} are changed. Every host follows within two seconds.")

    return Offer(
        title=f"Limits of {topic}", button="Set the limits", facts=_facts(namespace, topic, group), fields=fields,
        command="", do=do, back=topic_url(namespace, topic, group or ""),
    )  # fmt: skip


def _policy_of(changed: dict[str, str]) -> dict[str, Any]:
    """Return the fields of a policy. Raises InvalidArgumentError for a count with a fraction."""
    names = {"in_flight": "in_flight_max", "weight": "weight", "depth": "depth_max"}
    found: dict[str, Any] = {}
    for name, text in changed.items():
        if name == "rate":
            found["deliveries_per_second_max"] = float(text or 0)
        elif not (text or "0").isdecimal():
            raise InvalidArgumentError(f"{name} {text!r:.40} is no whole number: nothing was done")
        else:
            found[names[name]] = int(text or 0)
    return found


def namespace_pause_offer(asked: Asked) -> Offer:
    """Offer to pause a namespace."""
    namespace = asked.namespace

    async def do(admin: AsyncAdminClient, inputs: Inputs, now_ms: int) -> Done:
        changes = _paused(inputs["what"], is_paused=True)
        await admin.update_namespace(namespace, pause_reason=inputs["reason"], **changes)
        return Done(f"{namespace} is paused. Every host follows within two seconds.")

    return Offer(
        title=f"Pause {namespace}", button="Pause", facts=[("Namespace", namespace)], fields=(_WHAT, _REASON),
        command=line(["namespace", "pause"], [namespace]), do=do, back="/",
    )  # fmt: skip


def namespace_resume_offer(asked: Asked) -> Offer:
    """Offer to resume a namespace."""
    namespace = asked.namespace

    async def do(admin: AsyncAdminClient, _: Inputs, now_ms: int) -> Done:
        await admin.update_namespace(namespace, pause_reason="", **_paused(_BOTH, is_paused=False))
        return Done(f"{namespace} is resumed.")

    return Offer(
        title=f"Resume {namespace}", button="Resume", facts=[("Namespace", namespace)],
        command=line(["namespace", "resume"], [namespace]), do=do, back="/",
    )  # fmt: skip


def release_offer(asked: Asked) -> Offer:
    """Offer to end the leases of a consumer."""
    namespace, consumer = asked.namespace, asked.query.get("consumer", "")
    topic, group = asked.query.get("topic", ""), asked.query.get("group") or None

    async def do(admin: AsyncAdminClient, _: Inputs, now_ms: int) -> Done:
        result = await admin.release_leases(namespace, consumer, topic, group=group)
        left = (
            f", {result.left_at_most_once} were left that are delivered once at most"
            if result.left_at_most_once
            else ""
        )
        return Done(f"{result.released} leases were ended{left}.")

    facts = [("Namespace", namespace), ("Consumer", consumer)] + ([("Topic", topic)] if topic else [])
    return Offer(
        title="Release leases", button="Release its leases", facts=facts, do=do,
        command=line(
            ["consumer", "release"], [namespace, consumer], [*option("--topic", topic), *option("--group", group)]
        ),
        note="Its items are ready again, and no failed attempt counts. A consumer that lives can take them again: "
        "pause the topic before.",
        back=topic_url(namespace, topic, group or "") if topic else namespace_url(namespace, "consumers"),
    )  # fmt: skip


def delete_item_offer(asked: Asked) -> Offer:
    """Offer to delete one item."""
    namespace, item = asked.namespace, asked.query.get("item", "")

    async def do(admin: AsyncAdminClient, _: Inputs, now_ms: int) -> Done:
        await admin.delete_items(namespace, item)
        return Done(f"Item {item} is deleted.")

    return Offer(
        title="Delete an item", button="Delete 1 item", is_danger=True, typed=item, do=do,
        facts=[("Namespace", namespace), ("Item", item)], command=line(["item", "delete"], [namespace, item]),
        note="Its payload is lost. An ack that comes later gets STALE_LEASE.", back=namespace_url(namespace, "topics"),
    )  # fmt: skip


def redrive_item_offer(asked: Asked) -> Offer:
    """Offer to make one dead letter ready again."""
    namespace, item, (topic, group) = asked.namespace, asked.query.get("item", ""), _topic_of(asked)

    async def do(admin: AsyncAdminClient, _: Inputs, now_ms: int) -> Done:
        found = await admin.redrive_dead_letters(namespace, topic, [item], group=group, return_errors=True)
        if found.errors:
            raise found.errors[0]
        return Done(f"Item {item} is ready again, with no failed attempt.")

    return Offer(
        title="Redrive a dead letter", button="Redrive 1 item", do=do,
        facts=[*_facts(namespace, topic, group), ("Item", item)],
        command=line(["dead-letter", "redrive"], [namespace, topic, item], option("--group", group)),
        back=item_url(namespace, item),
    )  # fmt: skip


def shard_offer(asked: Asked, action: str) -> Offer:
    """Offer to drain a shard, to let it take items again, or to move it to another host."""
    text = asked.query.get("shard", "")
    shard = next((one for one in asked.poller.shards if str(one.shard_id) == text), None)
    if shard is None:
        raise NotFoundError(f"shard {text!r:.20} is not known")
    hosts = [one.name for one in asked.poller.hosts]
    state = {"drain": ShardUse.DRAINING, "serve": ShardUse.SERVING}.get(action)

    async def do(admin: AsyncAdminClient, inputs: Inputs, now_ms: int) -> Done:
        await admin.update_shard(shard.shard_id, state=state, pinned_to=inputs.get("host"))
        return Done(f"Shard {text}: {action} is begun.")

    field = Field("host", "Host", "", "@", "the host that serves it while that host lives", [("", "any host"), *[
        (name, name) for name in hosts
    ]])  # fmt: skip
    return Offer(
        title=f"{action.capitalize()} shard {text}", button=f"{action.capitalize()} shard {text}",
        facts=[("Shard", text), ("Owner", shard.owner or "nobody"), ("Use", shard.state.name.lower())], do=do,
        command=line(["shard", action], [text]), back="/cluster", fields=[field] if action == "move" else [],
        typed=f"shard {text}" if action == "drain" else "", is_danger=action == "drain",
    )  # fmt: skip


def _paused(what: str, *, is_paused: bool) -> dict[str, Any]:
    """Return the settings that pause or resume."""
    changes: dict[str, Any] = {}
    if what != _ENQUEUES:
        changes["dequeue_paused"] = is_paused
    if what != _DELIVERIES:
        changes["enqueue_paused"] = is_paused
    return changes


def _facts(namespace: str, topic: str, group: str | None) -> list[tuple[str, str]]:
    return [("Namespace", namespace), ("Topic", topic), *([("Group", group)] if group else [])]
