"""`foqs hosts`: the live hosts of the cluster, and a check that they serve all of its shards."""

from __future__ import annotations

from collections.abc import Sequence

import click

from foqs.cli.host_checks import host_problems, route_problems, standby_problems
from foqs.cli.numbers import WholeNumber
from foqs.cli.output import Exit, leave, note, time_of
from foqs.cli.remote import Remote, remote_command
from foqs.cli.shard_commands import shard_problems
from foqs.model.cluster_calls import ClusterHost, HostState

_SHARDS_SHOWN_MAX = 20


@click.command()
@click.option("--check", is_flag=True, help="Exit code 1 unless every shard is served and well, and all hosts answer.")
@click.option(
    "--hosts-min",
    type=WholeNumber(1),
    default=1,
    show_default=True,
    help="With --check: least number of hosts that serve or stand by. From 2 on each shard needs a standby.",
)
@remote_command
def hosts(remote: Remote, check: bool, hosts_min: int) -> None:
    """List the hosts that live, or check that they serve every shard.

    The answering host reports its view of the others. Dead hosts are not listed; use --hosts-min to require a number of
    hosts.

    With --check the exit code is 0 if every shard that was not removed is served by a live host and healthy, all hosts
    answer, and the asked host reaches the owner of each shard. Otherwise it is 1, with the reasons on stderr, or 5 if
    no host answers.
    """
    problems: list[str] = []
    with remote.admin() as admin:
        found = admin.list_hosts()
        if check:
            shards = admin.list_shards()
            standby = standby_problems(found, shards)
            problems = [*host_problems(found, hosts_min), *shard_problems(shards), *route_problems(admin)]
            problems += standby if hosts_min > 1 else []
            for problem in standby if hosts_min == 1 and len(found) > 1 else ():
                note(f"warning: {problem}")
    remote.output.document(found)
    remote.output.table(
        [
            "HOST",
            "PROCESS",
            "ADDRESS",
            "PEER ADDRESS",
            "TIER",
            "VERSION",
            "STATE",
            "UP SINCE",
            "BEAT MS AGO",
            "SHARDS",
            "SICK",
            "DETAIL",
        ],
        (
            (
                one.name,
                one.host_id,
                one.address,
                one.peer_address,
                one.tier,
                one.version,
                _state_of(one),
                time_of(one.started_at_ms),
                one.beat_age_ms,
                _named(one.shards),
                _named(one.sick_shards),
                one.detail,
            )
            for one in found
        ),
        is_last_cut=True,
    )
    if problems:
        for problem in problems:
            note(f"not well: {problem}")
        leave(Exit.FAILURE)


def _state_of(host: ClusterHost) -> str:
    is_both = host.is_leaving and host.state is not HostState.LEAVING
    return host.state.name.lower() + (", leaving" if is_both else "")


def _named(shards: Sequence[int]) -> str:
    """The ids of the shards, or the first 20 ids and the number of shards."""
    some = " ".join(map(str, shards[:_SHARDS_SHOWN_MAX]))
    return some if len(shards) <= _SHARDS_SHOWN_MAX else f"{some} ... ({len(shards)} in all)"
