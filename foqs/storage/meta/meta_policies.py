"""The policies of topics and of prefixes in the meta database: changed by calls, and read repeatedly by every host."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any
from zlib import crc32

from sqlalchemy import Connection, RowMapping, Table, and_, cast, delete, func, insert, or_, select, update
from sqlalchemy.dialects.mysql import BIGINT

from foqs.model.errors import FoqsError, UnknownNamespaceError
from foqs.model.namespace import Namespace
from foqs.model.policies import NamespacePolicies, Policies
from foqs.model.policy import FIELDS, NOTHING_SAID, OwnPolicy, TopicPolicyEntry
from foqs.model.policy_book import NamedChange, PolicyBook, PolicyCounts
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_tables import NAMESPACE, TOPIC_POLICY, TOPIC_PREFIX_POLICY

_VERSION_BITS = 63
_HEX_DIGITS = 16
_NAMESPACES_AT_ONCE = 100
"""Namespaces with changed policies that one statement reads."""


class _Kind:
    """Policies of one kind, in a table of their own: policies of topics, or of prefixes."""

    def __init__(self, table: Table, name_column: str) -> None:
        self.table = table
        self.namespace = table.c.namespace
        self.name_column = name_column
        self.name = table.c[name_column]
        self.block = func.crc32(self.name).op(">>")(24)
        """The names in a namespace are split into 256 blocks by hash."""
        # MySQL 9.7 no longer has MD5 and SHA1.
        digest = func.conv(func.left(func.sha2(func.concat_ws(",", *table.c), 256), _HEX_DIGITS), 16, 10)
        row_digest = cast(digest, BIGINT(unsigned=True))
        self.digests = select(table.c.namespace, self.block, func.count(), func.bit_xor(row_digest))

    def named(self, row: RowMapping) -> tuple[str, OwnPolicy]:
        values = {field: row[field] for field in (*FIELDS, "explicit")}
        values["reason"] = row["reason"].decode()
        for field in ("enqueue_paused", "dequeue_paused"):
            values[field] = bool(row[field])
        return row[self.name_column].decode(), OwnPolicy(**values)

    def row_of(self, number: int, name: str, policy: OwnPolicy) -> dict[str, Any]:
        values = {**asdict(policy), "reason": policy.reason.encode()}
        return {"namespace": number, self.name_column: name.encode(), **values}


_TOPICS = _Kind(TOPIC_POLICY, "topic")
_PREFIXES = _Kind(TOPIC_PREFIX_POLICY, "prefix")


class PolicyBlocks:
    """The policies of one kind as of the last read, by namespace, with a digest of each block. For any thread."""

    def __init__(self, kind: _Kind) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._versions: dict[int, int] = {}
        self._digests: dict[int, dict[int, tuple[int, int]]] = {}
        self._policies: dict[int, dict[str, OwnPolicy]] = {}

    def read(self, connection: Connection, namespaces: Sequence[Namespace]) -> Policies:
        """Return all policies, as the same object as the last time if no policy has changed.

        Only namespaces whose version has changed are examined, and only their changed blocks are read. A change during
        this read is found by the next one, because versions are read before policies.
        """
        with self._lock:
            versions = {one.number: one.policies_version for one in namespaces if one.policies_version}
            if versions == self._versions:
                return self._policies
            changed = iter([number for number, version in versions.items() if self._versions.get(number) != version])
            policies = {number: some for number, some in self._policies.items() if number in versions}
            digests = {number: some for number, some in self._digests.items() if number in versions}
            while numbers := list(islice(changed, _NAMESPACES_AT_ONCE)):
                found = self._digests_of(connection, numbers)
                policies |= self._read_blocks(connection, found)
                digests |= found
            self._versions, self._digests = versions, digests
            self._policies = {number: some for number, some in policies.items() if some}
            return self._policies

    def _read_blocks(
        self, connection: Connection, digests: Mapping[int, Mapping[int, tuple[int, int]]]
    ) -> dict[int, dict[str, OwnPolicy]]:
        """Return the policies of these namespaces, reading only blocks with an unknown digest."""
        wanted, gone = {}, {}
        for number, blocks in digests.items():
            known = self._digests.get(number, {})
            wanted[number] = [block for block, digest in blocks.items() if known.get(block) != digest]
            gone[number] = {*wanted[number], *(known.keys() - blocks.keys())}
        read: dict[int, dict[str, OwnPolicy]] = {number: {} for number in digests}
        for row in self._rows_of(connection, wanted):
            name, policy = self._kind.named(row)
            before = self._policies.get(row["namespace"], {}).get(name)
            read[row["namespace"]][name] = before if before == policy and before is not None else policy
        for number, some in read.items():
            if gone[number]:
                for name, policy in self._policies.get(number, {}).items():
                    if _block_of(name) not in gone[number]:
                        some[name] = policy
            else:
                read[number] = self._policies.get(number, {})
        return read

    def _digests_of(self, connection: Connection, numbers: Sequence[int]) -> dict[int, dict[int, tuple[int, int]]]:
        found: dict[int, dict[int, tuple[int, int]]] = {number: {} for number in numbers}
        kind = self._kind
        statement = kind.digests.where(kind.namespace.in_(numbers)).group_by(kind.namespace, kind.block)
        for number, block, count, digest in connection.execute(statement):
            found[number][block] = (count, digest)
        return found

    def _rows_of(self, connection: Connection, blocks: Mapping[int, Sequence[int]]) -> Iterator[RowMapping]:
        kind = self._kind
        mine = [and_(kind.namespace == number, kind.block.in_(some)) for number, some in blocks.items() if some]
        if mine:
            yield from connection.execute(select(kind.table).where(or_(*mine))).mappings()


def _block_of(name: str) -> int:
    return crc32(name.encode()) >> 24


def topic_policy_blocks() -> PolicyBlocks:
    return PolicyBlocks(_TOPICS)


def prefix_policy_blocks() -> PolicyBlocks:
    return PolicyBlocks(_PREFIXES)


class MetaPolicies:
    """The tables of policies."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    @in_transaction
    def set(
        self, connection: Connection, namespace_name: str, changes: Sequence[NamedChange]
    ) -> list[TopicPolicyEntry | FoqsError]:
        """Change policies in order in one transaction, and return each resulting policy, or the error of its change.

        A failing change has no effect, and the others are made. Raises UnknownNamespaceError.
        """
        mine = select(NAMESPACE.c.number).where(NAMESPACE.c.name == namespace_name.encode()).with_for_update()
        number = connection.execute(mine).scalar()
        if number is None:
            raise UnknownNamespaceError(f"namespace {namespace_name!r:.80} does not exist: create it first")
        names = [wanted.name for wanted in changes if not wanted.is_prefix]
        topics, prefixes = _those_named(connection, number, names), _all_prefixes(connection, number)
        counts = PolicyCounts()
        if any(wanted.name not in (prefixes if wanted.is_prefix else topics) for wanted in changes):
            counts = _counts(connection, number)
        book = PolicyBook(namespace_name, topics, prefixes, counts)
        told: list[TopicPolicyEntry | FoqsError] = []
        for wanted in changes:
            try:
                told.append(book.change(wanted))
            except FoqsError as error:
                told.append(error)
        is_changed = _store(connection, _TOPICS, number, topics, book.topics_changed)
        is_changed = _store(connection, _PREFIXES, number, prefixes, book.prefixes_changed) or is_changed
        if is_changed:
            version = secrets.randbits(_VERSION_BITS) | 1
            here = NAMESPACE.c.number == number
            connection.execute(update(NAMESPACE).where(here).values(policies_version=version))
        return told

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


def _those_named(connection: Connection, number: int, names: Sequence[str]) -> dict[str, OwnPolicy]:
    wanted = [name.encode() for name in names]
    rows = select(TOPIC_POLICY).where(TOPIC_POLICY.c.namespace == number, TOPIC_POLICY.c.topic.in_(wanted))
    return dict(map(_TOPICS.named, connection.execute(rows).mappings())) if names else {}


def _all_prefixes(connection: Connection, number: int) -> dict[str, OwnPolicy]:
    rows = select(TOPIC_PREFIX_POLICY).where(TOPIC_PREFIX_POLICY.c.namespace == number)
    return dict(map(_PREFIXES.named, connection.execute(rows).mappings()))


def _counts(connection: Connection, number: int) -> PolicyCounts:
    def count(kind: _Kind) -> tuple[int, int]:
        of_all = select(func.count()).select_from(kind.table)
        of_namespace = of_all.where(kind.namespace == number)
        return connection.execute(of_namespace).scalar_one(), connection.execute(of_all).scalar_one()

    topics, all_topics = count(_TOPICS)
    prefixes, all_prefixes = count(_PREFIXES)
    return PolicyCounts(topics, prefixes, all_topics + all_prefixes)


def _store(
    connection: Connection,
    kind: _Kind,
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
    new = [kind.row_of(number, name, policy) for name, policy in changed.items() if policy != NOTHING_SAID]
    if new:
        connection.execute(insert(kind.table), new)
    return bool(changed)


def delete_policies_of(connection: Connection, namespace: int) -> None:
    for kind in (_TOPICS, _PREFIXES):
        connection.execute(delete(kind.table).where(kind.namespace == namespace))
