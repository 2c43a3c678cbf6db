"""`foqs topic pause`, `resume`, `limit`, `weight`, `policies` and others: policies of topics and prefixes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from foqs.cli.group_commands import group_option
from foqs.cli.numbers import WholeNumber
from foqs.cli.remote import Remote, remote_command
from foqs.model import limits
from foqs.model.aging import AGING_MS_MAX
from foqs.model.policy import DEPTH_MAX, IN_FLIGHT_MAX, TopicPolicyEntry, TriState
from foqs.model.serial import KEY_BATCH_MAX, OnDead
from foqs.model.topic_name import KEY_BUCKETS_MAX

NO_CAP = "none"
EXPIRY = {"dead-letter": TriState.ON, "delete": TriState.OFF, "namespace": TriState.UNSET}
"""The fates of expired items that never failed."""
_COLUMNS = (
    "topic",
    "paused",
    "items/s",
    "weight",
    "attempts",
    "in flight",
    "depth",
    "expiry",
    "backoff ms",
    "serial",
    "reason",
)


class Rate(click.ParamType):  # type: ignore[type-arg]
    """A rate in items a second, or none."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        low, high = limits.DELIVERIES_PER_SECOND_MIN, limits.DELIVERIES_PER_SECOND_MAX
        try:
            rate = 0.0 if value == NO_CAP else float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor {NO_CAP}", param, ctx)
        if rate and not low <= rate <= high:
            self.fail(f"{value!r} is not within {low}..{high}; say {NO_CAP} for no cap", param, ctx)
        return rate


def pausing_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options for the direction to pause or resume; both if neither is given."""
    command = click.option("--dequeue", is_flag=True, help="Only deliveries.")(command)
    return click.option("--enqueue", is_flag=True, help="Only enqueues.")(command)


def reason_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option("--reason", default="", help="Reason, shown to callers.")(command)


def prefix_option(command: Callable[..., None]) -> Callable[..., None]:
    meaning = "TOPIC is a prefix of topics. A topic's own policy and those of longer prefixes take precedence."
    return click.option("--prefix", "is_prefix", is_flag=True, help=meaning)(command)


def paused_settings(enqueue: bool, dequeue: bool, *, paused: bool) -> dict[str, Any]:
    """The settings of a namespace or a topic that pause or resume it."""
    both = not (enqueue or dequeue)
    names = [name for name, chosen in (("enqueue_paused", enqueue), ("dequeue_paused", dequeue)) if chosen or both]
    return dict.fromkeys(names, paused)


def _paused(group: str | None, enqueue: bool, dequeue: bool, *, paused: bool) -> dict[str, Any]:
    """The settings that pause or resume a topic, or one of its groups, of which only deliveries can be paused."""
    return paused_settings(enqueue, dequeue or bool(group and not enqueue), paused=paused)


@click.command()
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@pausing_options
@reason_option
@prefix_option
@group_option
@remote_command
def pause(
    remote: Remote,
    namespace: str,
    topic_name: str,
    is_prefix: bool,
    group: str | None,
    enqueue: bool,
    dequeue: bool,
    reason: str,
) -> None:
    """Pause TOPIC: enqueues, deliveries, or both if neither is named; deliveries alone with --group. Its items stay.

    Every host follows within two seconds; calls that wait for TOPIC alone get PAUSED.
    """
    changes = _paused(group, enqueue, dequeue, paused=True)
    _set(remote, namespace, topic_name, is_prefix, group, reason=reason, **changes)


@click.command()
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@pausing_options
@prefix_option
@group_option
@remote_command
def resume(
    remote: Remote,
    namespace: str,
    topic_name: str,
    is_prefix: bool,
    group: str | None,
    enqueue: bool,
    dequeue: bool,
) -> None:
    """Resume TOPIC: enqueues, deliveries, or both if neither is named."""
    with remote.admin() as admin:
        changes = _paused(group, enqueue, dequeue, paused=False)
        policy = admin.set_topic_policy(namespace, topic_name, is_prefix=is_prefix, group=group, **changes)
        if policy.reason and not (policy.enqueue_paused or policy.dequeue_paused):
            policy = admin.set_topic_policy(namespace, topic_name, is_prefix=is_prefix, group=group, reason="")
        _show(remote, policy)


@click.command()
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("rate", type=Rate())
@prefix_option
@group_option
@remote_command
def limit(remote: Remote, namespace: str, topic_name: str, is_prefix: bool, group: str | None, rate: float) -> None:
    """Deliver at most RATE items of TOPIC a second, of all priorities together; "none" for no limit.

    RATE can have a fraction: 0.5 is one item every two seconds.
    """
    _set(remote, namespace, topic_name, is_prefix, group, deliveries_per_second_max=rate)


@click.command()
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("number", metavar="WEIGHT", type=WholeNumber(1, limits.TOPIC_WEIGHT_MAX))
@prefix_option
@group_option
@remote_command
def weight(remote: Remote, namespace: str, topic_name: str, is_prefix: bool, group: str | None, number: int) -> None:
    """Set the WEIGHT of TOPIC: its share of dequeues from any topic, relative to a topic of weight 1."""
    _set(remote, namespace, topic_name, is_prefix, group, weight=number)


@click.command()
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("number", metavar="ATTEMPTS", type=WholeNumber(0, limits.ATTEMPTS_MAX))
@prefix_option
@group_option
@remote_command
def attempts(remote: Remote, namespace: str, topic_name: str, is_prefix: bool, group: str | None, number: int) -> None:
    """Make items of TOPIC dead letters after ATTEMPTS failed ones; 0 for as many as NAMESPACE says."""
    _set(remote, namespace, topic_name, is_prefix, group, attempts_max=number)


@click.command("in-flight")
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("number", metavar="ITEMS", type=WholeNumber(0, IN_FLIGHT_MAX))
@prefix_option
@group_option
@remote_command
def in_flight(remote: Remote, namespace: str, topic_name: str, is_prefix: bool, group: str | None, number: int) -> None:
    """Let at most ITEMS of TOPIC be under lease at the same time, on all hosts together; 0 for no limit.

    With --prefix each topic has this limit by itself. A lower limit ends no lease.
    """
    _set(remote, namespace, topic_name, is_prefix, group, in_flight_max=number)


@click.command()
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("number", metavar="ITEMS", type=WholeNumber(0, DEPTH_MAX))
@prefix_option
@group_option
@remote_command
def depth(remote: Remote, namespace: str, topic_name: str, is_prefix: bool, group: str | None, number: int) -> None:
    """Refuse enqueues of TOPIC while it has ITEMS that are ready, delayed or leased; 0 for no limit.

    Dead letters do not count. Hosts that enqueue at the same time can exceed ITEMS by those of about a second.
    """
    _set(remote, namespace, topic_name, is_prefix, group, depth_max=number)


@click.command()
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("fate", metavar="FATE", type=click.Choice(list(EXPIRY)))
@prefix_option
@group_option
@remote_command
def expiry(remote: Remote, namespace: str, topic_name: str, is_prefix: bool, group: str | None, fate: str) -> None:
    """Set the FATE of items of TOPIC that expire and never failed: dead-letter, delete, or that of the namespace."""
    _set(remote, namespace, topic_name, is_prefix, group, dead_letter_on_expiry=EXPIRY[fate])


@click.command()
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("first_ms", metavar="MS", type=WholeNumber(0, limits.DELAY_MS_MAX))
@click.option("--max-ms", type=WholeNumber(0, limits.DELAY_MS_MAX), metavar="MS", help="Longest delay; 0: 90 days.")
@prefix_option
@group_option
@remote_command
def backoff(
    remote: Remote,
    namespace: str,
    topic_name: str,
    is_prefix: bool,
    group: str | None,
    first_ms: int,
    max_ms: int | None,
) -> None:
    """Delay an item of TOPIC by MS after its first failed attempt, twice as long after each further one; 0 for none.

    A failed attempt is a lost lease, or a nack without a delay of its own.
    """
    _set(remote, namespace, topic_name, is_prefix, group, backoff_ms=first_ms, backoff_ms_max=max_ms)


@click.command()
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("is_on", metavar="on|off", type=click.Choice(["on", "off"]))
@click.option(
    "--on-dead",
    type=click.Choice([one.name.lower() for one in OnDead]),
    help="After a dead letter: continue with the next item (default), or hold the topic until it is gone.",
)
@prefix_option
@remote_command
def serial(remote: Remote, namespace: str, topic_name: str, is_on: str, on_dead: str | None, is_prefix: bool) -> None:
    """Deliver the items of TOPIC one at a time, in the order of priority and commit; off to deliver many again.

    TOPIC must hold no items when it becomes serial. Each of its groups is serial by itself.
    """
    changes: dict[str, Any] = {} if on_dead is None else {"on_dead": OnDead[on_dead.upper()]}
    _set(remote, namespace, topic_name, is_prefix, None, serial=is_on == "on", **changes)


@click.command("key-buckets")
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("number", metavar="BUCKETS", type=WholeNumber(0, KEY_BUCKETS_MAX))
@prefix_option
@remote_command
def key_buckets(remote: Remote, namespace: str, topic_name: str, number: int, is_prefix: bool) -> None:
    """Let the ordering keys of TOPIC share BUCKETS sequences; 0 for one sequence for each key.

    TOPIC must hold no items. The items of a bucket are delivered one at a time, and do not show their keys.
    """
    _set(remote, namespace, topic_name, is_prefix, None, key_buckets=number)


@click.command("key-batch")
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("number", metavar="ITEMS", type=WholeNumber(0, KEY_BATCH_MAX))
@prefix_option
@remote_command
def key_batch(remote: Remote, namespace: str, topic_name: str, number: int, is_prefix: bool) -> None:
    """Let one dequeue get up to ITEMS items of an ordering key of TOPIC together; 0 for one.

    The next items of the key follow when all of these have ended. A serial topic has it for its own items.
    """
    _set(remote, namespace, topic_name, is_prefix, None, key_batch=number)


@click.command()
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("number", metavar="MS_PER_PRIORITY", type=WholeNumber(0, AGING_MS_MAX))
@prefix_option
@group_option
@remote_command
def aging(remote: Remote, namespace: str, topic_name: str, number: int, is_prefix: bool, group: str | None) -> None:
    """Let items of TOPIC become more urgent by one priority with each MS_PER_PRIORITY ms of waiting.

    0 for strict priorities. Items that wait already keep their places.
    """
    _set(remote, namespace, topic_name, is_prefix, group, aging_ms_per_priority=number)


@click.command()
@click.argument("namespace")
@click.option("--prefix", default="", help="Only topics and prefixes with this prefix.")
@remote_command
def policies(remote: Remote, namespace: str, prefix: str) -> None:
    """List the topics of NAMESPACE with a policy of their own. Prefixes with one are listed before them.

    A prefix has a * at its end. A topic's row shows the policy in force, its own or that of a prefix.
    """
    with remote.admin() as admin:
        found = list(admin.list_topic_policies(namespace, prefix))
    remote.output.document([asdict(one) for one in found])
    remote.output.table([name.upper() for name in _COLUMNS], map(_row, found))


def _set(remote: Remote, namespace: str, topic_name: str, is_prefix: bool, group: str | None, **changes: Any) -> None:
    """Change a policy, and show the one in force."""
    with remote.admin() as admin:
        _show(remote, admin.set_topic_policy(namespace, topic_name, is_prefix=is_prefix, group=group, **changes))


def _show(remote: Remote, policy: TopicPolicyEntry) -> None:
    remote.output.document(asdict(policy))
    remote.output.table(["KEY", "VALUE"], zip(_COLUMNS, _row(policy), strict=True))


def _row(policy: TopicPolicyEntry) -> tuple[object, ...]:
    paused = [verb for verb in ("enqueue", "dequeue") if getattr(policy, f"{verb}_paused")]
    rate = policy.deliveries_per_second_max
    name = policy.topic + "*" * policy.is_prefix + (f" (group {policy.group})" if policy.group else "")
    cap = f"{rate:g}" if rate else NO_CAP
    expires = {state: fate for fate, state in EXPIRY.items() if state}.get(policy.dead_letter_on_expiry, "")
    holds = policy.on_dead is OnDead.HOLD
    order = ("yes, dead letters hold it" if holds else "yes") if policy.serial else "no"
    if policy.key_buckets:
        order += f", keys in {policy.key_buckets} buckets"
    if policy.key_batch > 1:
        order += f", {policy.key_batch} together"
    if policy.aging_ms_per_priority:
        order += f", ages by one priority in {policy.aging_ms_per_priority} ms"
    counts = policy.weight, policy.attempts_max or "", policy.in_flight_max or "", policy.depth_max or ""
    return name, ", ".join(paused) or "no", cap, *counts, expires, _backoff(policy), order, policy.reason


def _backoff(policy: TopicPolicyEntry) -> str:
    if not policy.backoff_ms:
        return ""
    return f"{policy.backoff_ms}" + (f"..{policy.backoff_ms_max}" if policy.backoff_ms_max else "")
