"""`foqs topic pause`, `resume`, `limit`, `weight`, `attempts` and `policies`: policies of topics and prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import click

from foqs.cli.group_commands import group_option
from foqs.cli.numbers import WholeNumber
from foqs.cli.remote import Remote, remote_command
from foqs.model import limits
from foqs.model.policy import TopicPolicyEntry

NO_CAP = "none"


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


@click.command()
@click.argument("namespace")
@click.option("--prefix", default="", help="Only topics and prefixes with this prefix.")
@remote_command
def policies(remote: Remote, namespace: str, prefix: str) -> None:
    """List the topics of NAMESPACE that are paused or have a limit or a weight. Such prefixes are listed before them.

    A prefix has a * at its end. A topic's row shows the policy in force, its own or that of a prefix.
    """
    with remote.admin() as admin:
        found = list(admin.list_topic_policies(namespace, prefix))
    remote.output.document([asdict(one) for one in found])
    remote.output.table(["TOPIC", "PAUSED", "ITEMS/S", "WEIGHT", "ATTEMPTS", "REASON"], map(_row, found))


def _set(remote: Remote, namespace: str, topic_name: str, is_prefix: bool, group: str | None, **changes: Any) -> None:
    """Change a policy, and show the one in force."""
    with remote.admin() as admin:
        _show(remote, admin.set_topic_policy(namespace, topic_name, is_prefix=is_prefix, group=group, **changes))


def _show(remote: Remote, policy: TopicPolicyEntry) -> None:
    remote.output.document(asdict(policy))
    names: Iterable[str] = ("topic", "paused", "items/s", "weight", "attempts", "reason")
    remote.output.table(["KEY", "VALUE"], zip(names, _row(policy), strict=True))


def _row(policy: TopicPolicyEntry) -> tuple[object, ...]:
    paused = [verb for verb in ("enqueue", "dequeue") if getattr(policy, f"{verb}_paused")]
    rate = policy.deliveries_per_second_max
    name = policy.topic + "*" * policy.is_prefix + (f" (group {policy.group})" if policy.group else "")
    cap = f"{rate:g}" if rate else NO_CAP
    return name, ", ".join(paused) or "no", cap, policy.weight, policy.attempts_max or "", policy.reason
