"""`foqs topic pause`, `resume`, `limit`, `weight` and `policies`: what operators say of topics and prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import click

from foqs.cli.numbers import WholeNumber
from foqs.cli.remote import Remote, remote_command
from foqs.model import limits
from foqs.model.policy import TopicPolicyEntry

NO_CAP = "none"


class Rate(click.ParamType):  # type: ignore[type-arg]
    """Items a second, or none."""

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
    """Options for the direction that is paused or resumed; both where neither is given."""
    command = click.option("--dequeue", is_flag=True, help="Only deliveries.")(command)
    return click.option("--enqueue", is_flag=True, help="Only enqueues.")(command)


def reason_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option("--reason", default="", help="Why: callers are told.")(command)


def prefix_option(command: Callable[..., None]) -> Callable[..., None]:
    told = "TOPIC is a prefix: each topic that begins so, unless it has a word of its own or of a longer prefix."
    return click.option("--prefix", "is_prefix", is_flag=True, help=told)(command)


def paused_settings(enqueue: bool, dequeue: bool, *, paused: bool) -> dict[str, Any]:
    """The settings of a namespace or a topic that pause it, or let it go on."""
    both = not (enqueue or dequeue)
    names = [name for name, chosen in (("enqueue_paused", enqueue), ("dequeue_paused", dequeue)) if chosen or both]
    return dict.fromkeys(names, paused)


@click.command()
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@pausing_options
@reason_option
@prefix_option
@remote_command
def pause(
    remote: Remote, namespace: str, topic_name: str, is_prefix: bool, enqueue: bool, dequeue: bool, reason: str
) -> None:
    """Pause TOPIC: enqueues, deliveries, or both if neither is named. Its items stay.

    Every host follows within two seconds; calls that wait for TOPIC alone get PAUSED.
    """
    with remote.admin() as admin:
        changes = paused_settings(enqueue, dequeue, paused=True)
        _show(remote, admin.set_topic_policy(namespace, topic_name, is_prefix=is_prefix, reason=reason, **changes))


@click.command()
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@pausing_options
@prefix_option
@remote_command
def resume(remote: Remote, namespace: str, topic_name: str, is_prefix: bool, enqueue: bool, dequeue: bool) -> None:
    """Let TOPIC go on: enqueues, deliveries, or both if neither is named."""
    with remote.admin() as admin:
        changes = paused_settings(enqueue, dequeue, paused=False)
        policy = admin.set_topic_policy(namespace, topic_name, is_prefix=is_prefix, **changes)
        if policy.reason and not (policy.enqueue_paused or policy.dequeue_paused):
            policy = admin.set_topic_policy(namespace, topic_name, is_prefix=is_prefix, reason="")
        _show(remote, policy)


@click.command()
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("rate", type=Rate())
@prefix_option
@remote_command
def limit(remote: Remote, namespace: str, topic_name: str, is_prefix: bool, rate: float) -> None:
    """Deliver at most RATE items of TOPIC a second, whatever their priorities; "none" for no limit.

    RATE may have a fraction: 0.5 is one item every two seconds.
    """
    with remote.admin() as admin:
        _show(
            remote, admin.set_topic_policy(namespace, topic_name, is_prefix=is_prefix, deliveries_per_second_max=rate)
        )


@click.command()
@click.argument("namespace")
@click.argument("topic_name", metavar="TOPIC")
@click.argument("number", metavar="WEIGHT", type=WholeNumber(1, limits.TOPIC_WEIGHT_MAX))
@prefix_option
@remote_command
def weight(remote: Remote, namespace: str, topic_name: str, is_prefix: bool, number: int) -> None:
    """Give TOPIC so many times the share of a topic of weight 1 in dequeues from any topic."""
    with remote.admin() as admin:
        _show(remote, admin.set_topic_policy(namespace, topic_name, is_prefix=is_prefix, weight=number))


@click.command()
@click.argument("namespace")
@click.option("--prefix", default="", help="Only topics and prefixes that start so.")
@remote_command
def policies(remote: Remote, namespace: str, prefix: str) -> None:
    """List the topics of NAMESPACE that are paused, or have a limit or a weight, and before them such prefixes.

    A prefix has a * behind it. What is listed for a topic is what holds for it, by itself or by a prefix.
    """
    with remote.admin() as admin:
        found = list(admin.list_topic_policies(namespace, prefix))
    remote.output.document([asdict(one) for one in found])
    remote.output.table(["TOPIC", "PAUSED", "ITEMS/S", "WEIGHT", "REASON"], map(_row, found))


def _show(remote: Remote, policy: TopicPolicyEntry) -> None:
    remote.output.document(asdict(policy))
    names: Iterable[str] = ("topic", "paused", "items/s", "weight", "reason")
    remote.output.table(["KEY", "VALUE"], zip(names, _row(policy), strict=True))


def _row(policy: TopicPolicyEntry) -> tuple[object, ...]:
    paused = [verb for verb in ("enqueue", "dequeue") if getattr(policy, f"{verb}_paused")]
    rate = policy.deliveries_per_second_max
    name = policy.topic + "*" * policy.is_prefix
    return name, ", ".join(paused) or "no", f"{rate:g}" if rate else NO_CAP, policy.weight, policy.reason
