"""The policies of topics and of prefixes in the meta database: changed by calls, and read repeatedly by every host."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from sqlalchemy import Connection, RowMapping, and_, delete, func, insert, select, update

from foqs.model.census import Census, Closed, held_of
from foqs.model.errors import FoqsError, UnknownNamespaceError
from foqs.model.policies import NamespacePolicies
from foqs.model.policy import FIELDS, NOTHING_SAID, OwnPolicy, TopicPolicyEntry, TriState, check_group_of
from foqs.model.policy_book import Emptied, NamedChange, PolicyBook, PolicyCounts
from foqs.model.serial import OnDead
from foqs.model.topic_name import parts
from foqs.storage.meta.meta_censuses import counted, delete_census, insert_census
from foqs.storage.meta.meta_rows import Blocks, Kind
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_tables import NAMESPACE, TOPIC_GROUP, TOPIC_POLICY, TOPIC_PREFIX_POLICY

_VERSION_BITS = 63


def _policy_of(row: RowMapping) -> OwnPolicy:
    values = {field: row[field] for field in (*FIELDS, "explicit")}
    values["reason"] = row["reason"].decode()
    for field in ("enqueue_paused", "dequeue_paused", "serial"):
        values[field] = bool(row[field])
    values["dead_letter_on_expiry"] = TriState(row["dead_letter_on_expiry"])
    values["on_dead"] = OnDead(row["on_dead"])
    return OwnPolicy(**values)


def _row_of(kind: Kind[OwnPolicy], number: int, name: str, policy: OwnPolicy) -> dict[str, Any]:
    values = {**asdict(policy), "reason": policy.reason.encode(), "on_dead": int(policy.on_dead)}
    values["dead_letter_on_expiry"] = int(policy.dead_letter_on_expiry)
    return {"namespace": number, kind.name_column: name.encode(), **values}


_TOPICS = Kind(TOPIC_POLICY, "topic", _policy_of)
_PREFIXES = Kind(TOPIC_PREFIX_POLICY, "prefix", _policy_of)


def topic_policy_blocks() -> Blocks[OwnPolicy]:
    return Blocks(_TOPICS)


def prefix_policy_blocks() -> Blocks[OwnPolicy]:
    return Blocks(_PREFIXES)


class PolicyCensus(NamedTuple):
    """Changes that make topics serial, which are made after this census of the topics."""

    census: Census
    namespace_name: str
    changes: Sequence[NamedChange]


Changed = Sequence[TopicPolicyEntry | FoqsError]
"""Each resulting policy, or the error of its change, in the order of the changes."""


class MetaPolicies:
    """The tables of policies."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    @in_transaction
    def set(
        self, connection: Connection, namespace_name: str, changes: Sequence[NamedChange]
    ) -> Changed | PolicyCensus:
        """Change policies in order in one transaction, and return each resulting policy, or the error of its change.

        A failing change has no effect, and the others are made. If one makes topics serial, nothing is changed yet:
        `finish` makes all changes after the census. Raises UnknownNamespaceError.
        """
        number = lock_number(connection, namespace_name)
        changed, made_serial = _change(connection, namespace_name, number, changes, None)
        if made_serial:
            return PolicyCensus(insert_census(connection, 0, number, "", made_serial), namespace_name, changes)
        return changed

    @in_transaction
    def finish(
        self, connection: Connection, wanted: PolicyCensus
    ) -> tuple[TopicPolicyEntry | FoqsError, ...] | list[int]:
        """Make the changes if the topics that become serial hold no items, or return the shards without an answer.

        Raises UnknownNamespaceError, and UnavailableError if the census is over.
        """
        census = wanted.census
        number = lock_number(connection, wanted.namespace_name)
        answers, missing = counted(connection, census)
        if missing:
            return missing
        emptied = Emptied(frozenset(census.closes), frozenset(held_of(census, answers)), _delayed(connection, number))
        changed, _ = _change(connection, wanted.namespace_name, number, wanted.changes, emptied)
        delete_census(connection, census)
        return tuple(changed)

    @in_transaction
    def page(
        self,
        connection: Connection,
        number: int,
        prefix: str,
        after: tuple[bool, str],
        limit: int,
        *,
        with_prefixes: bool,
    ) -> list[TopicPolicyEntry]:
        """Return the first `limit` policies of a namespace whose names begin with `prefix` and come after `after`.

        Policies of prefixes, if wanted, come before policies of topics; each kind is in order of names. `after` has the
        last entry's kind (True for a prefix) and its name.
        """
        is_after_prefix, after_name = after
        prefixes = _all_prefixes(connection, number)
        names = [one for one in sorted(prefixes) if one.startswith(prefix) and one > after_name]
        found = [
            TopicPolicyEntry.of(one, prefixes[one], prefixes[one], is_prefix=True)
            for one in names[: limit if with_prefixes and is_after_prefix else 0]
        ]
        topic, first = TOPIC_POLICY.c.topic, prefix.encode()
        # Names are UTF-8, which has no byte 0xff.
        mine = and_(topic >= first, topic < first + b"\xff", TOPIC_POLICY.c.namespace == number)
        if not is_after_prefix:
            mine = and_(mine, topic > after_name.encode())
        rows = select(TOPIC_POLICY).where(mine).order_by(topic).limit(limit - len(found))
        topics = dict(map(_TOPICS.named, connection.execute(rows).mappings()))
        in_force = NamespacePolicies(topics, prefixes)
        return found + [
            TopicPolicyEntry.of(name, in_force.of(name), own, is_prefix=False) for name, own in topics.items()
        ]


def _change(
    connection: Connection,
    namespace_name: str,
    number: int,
    changes: Sequence[NamedChange],
    emptied: Emptied | None,
) -> tuple[list[TopicPolicyEntry | FoqsError], tuple[Closed, ...]]:
    """Make the changes, and return their results. If some need a census first, make none, and return their topics."""
    names = [wanted.name for wanted in changes if not wanted.is_prefix]
    topics, prefixes = _those_named(connection, number, names), _all_prefixes(connection, number)
    counts = PolicyCounts()
    if any(wanted.name not in (prefixes if wanted.is_prefix else topics) for wanted in changes):
        counts = _counts(connection, number)
    book = PolicyBook(namespace_name, topics, prefixes, counts, emptied)
    results: list[TopicPolicyEntry | FoqsError] = []
    for wanted in changes:
        try:
            results.append(book.change(wanted))
        except FoqsError as error:
            results.append(error)
    if book.made_serial and emptied is None:
        return results, tuple(dict.fromkeys(book.made_serial))
    is_changed = _store(connection, _TOPICS, number, topics, book.topics_changed)
    is_changed = _store(connection, _PREFIXES, number, prefixes, book.prefixes_changed) or is_changed
    if is_changed:
        note_change(connection, number)
    return results, ()


def _delayed(connection: Connection, number: int) -> dict[str, str]:
    """Return the topics with a group that delays its copies, each with one such group."""
    mine = and_(TOPIC_GROUP.c.namespace == number, TOPIC_GROUP.c.delay_ms > 0, TOPIC_GROUP.c.is_deleted == 0)
    return dict(
        [parts(name.decode()) for name in connection.execute(select(TOPIC_GROUP.c.topic).where(mine)).scalars()]
    )


def check_new_group(connection: Connection, number: int, topic: str, delay_ms: int, *, is_copied: bool) -> None:
    """Raise InvalidArgumentError if the topic is serial and its group would delay copies, or copy waiting items."""
    if delay_ms or is_copied:
        topics, prefixes = _those_named(connection, number, [topic]), _all_prefixes(connection, number)
        check_group_of(NamespacePolicies(topics, prefixes).of(topic), topic, delay_ms, is_copied=is_copied)


def lock_number(connection: Connection, namespace_name: str) -> int:
    """Lock a namespace, and return its number. Raises UnknownNamespaceError."""
    mine = select(NAMESPACE.c.number).where(NAMESPACE.c.name == namespace_name.encode()).with_for_update()
    number: int | None = connection.execute(mine).scalar()
    if number is None:
        raise UnknownNamespaceError(f"namespace {namespace_name!r:.80} does not exist: create it first")
    return number


def note_change(connection: Connection, number: int) -> None:
    """Let hosts read the policies and the groups of a namespace again."""
    version = secrets.randbits(_VERSION_BITS) | 1
    connection.execute(update(NAMESPACE).where(NAMESPACE.c.number == number).values(policies_version=version))


def _those_named(connection: Connection, number: int, names: Sequence[str]) -> dict[str, OwnPolicy]:
    wanted = [name.encode() for name in names]
    rows = select(TOPIC_POLICY).where(TOPIC_POLICY.c.namespace == number, TOPIC_POLICY.c.topic.in_(wanted))
    return dict(map(_TOPICS.named, connection.execute(rows).mappings())) if names else {}


def _all_prefixes(connection: Connection, number: int) -> dict[str, OwnPolicy]:
    rows = select(TOPIC_PREFIX_POLICY).where(TOPIC_PREFIX_POLICY.c.namespace == number)
    return dict(map(_PREFIXES.named, connection.execute(rows).mappings()))


def _counts(connection: Connection, number: int) -> PolicyCounts:
    def count(kind: Kind[OwnPolicy]) -> tuple[int, int]:
        of_all = select(func.count()).select_from(kind.table)
        of_namespace = of_all.where(kind.namespace == number)
        return connection.execute(of_namespace).scalar_one(), connection.execute(of_all).scalar_one()

    topics, all_topics = count(_TOPICS)
    prefixes, all_prefixes = count(_PREFIXES)
    return PolicyCounts(topics, prefixes, all_topics + all_prefixes)


def _store(
    connection: Connection,
    kind: Kind[OwnPolicy],
    number: int,
    before: Mapping[str, OwnPolicy],
    after: Mapping[str, OwnPolicy],
) -> bool:
    """Store the changed policies in place of the former rows. Returns True if any policy has changed."""
    changed = {name: policy for name, policy in after.items() if before.get(name, NOTHING_SAID) != policy}
    # Delete existing rows only: others would lock gaps, where concurrent changes of other namespaces insert rows.
    old = [name.encode() for name in changed if name in before]
    if old:
        connection.execute(delete(kind.table).where(kind.namespace == number, kind.name.in_(old)))
    new = [_row_of(kind, number, name, policy) for name, policy in changed.items() if policy != NOTHING_SAID]
    if new:
        connection.execute(insert(kind.table), new)
    return bool(changed)


def delete_policies_of(connection: Connection, namespace: int) -> None:
    for kind in (_TOPICS, _PREFIXES):
        connection.execute(delete(kind.table).where(kind.namespace == namespace))
