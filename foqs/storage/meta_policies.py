"""The policies of topics in the meta database: changed, listed, and read again and again by every host."""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, fields
from itertools import islice
from zlib import crc32

from sqlalchemy import Connection, RowMapping, and_, cast, delete, func, or_, select, update
from sqlalchemy.dialects.mysql import BIGINT, insert

from foqs.model import limits
from foqs.model.errors import InvalidArgumentError, UnknownNamespaceError
from foqs.model.namespace import Namespace
from foqs.model.policy import NO_POLICY, TopicPolicy, TopicPolicyEntry, with_policy_changes
from foqs.storage.meta_tables import NAMESPACE, TOPIC_POLICY

_VERSION_BITS = 63
_BLOCK = func.crc32(TOPIC_POLICY.c.topic).op(">>")(24)
"""The policies of a namespace are in 256 blocks by their topics."""
_HEX_DIGITS = 16
# MySQL 9.7 has neither MD5 nor SHA1 any more.
_ROW_DIGEST = cast(
    func.conv(func.left(func.sha2(func.concat_ws(",", *TOPIC_POLICY.c), 256), _HEX_DIGITS), 16, 10),
    BIGINT(unsigned=True),
)
_DIGESTS = select(TOPIC_POLICY.c.namespace, _BLOCK, func.count(), func.bit_xor(_ROW_DIGEST))
_NAMESPACES_AT_ONCE = 100
"""The namespaces with changed policies that one statement asks for."""

Policies = Mapping[int, Mapping[str, TopicPolicy]]
"""The policies of topics, by the number of their namespace and by name."""


class PolicyBlocks:
    """The policies as they were read last, by namespace, with a digest of each block. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[int, int] = {}
        self._digests: dict[int, dict[int, tuple[int, int]]] = {}
        self._policies: dict[int, dict[str, TopicPolicy]] = {}

    def read(self, connection: Connection, namespaces: Sequence[Namespace]) -> Policies:
        """All policies: the same object as the last time when none of them has changed.

        Only namespaces with other versions than then are asked for, and of those only the blocks that have changed.
        What changes while this reads is read again the next time, since the version is of before.
        """
        with self._lock:
            versions = {one.number: one.policies_version for one in namespaces if one.policies_version}
            if versions == self._versions:
                return self._policies
            changed = iter([number for number, version in versions.items() if self._versions.get(number) != version])
            policies = {number: some for number, some in self._policies.items() if number in versions}
            digests = {number: some for number, some in self._digests.items() if number in versions}
            while numbers := list(islice(changed, _NAMESPACES_AT_ONCE)):
                found = _digests_of(connection, numbers)
                policies |= self._read_blocks(connection, found)
                digests |= found
            self._versions, self._digests = versions, digests
            self._policies = {number: some for number, some in policies.items() if some}
            return self._policies

    def _read_blocks(
        self, connection: Connection, digests: Mapping[int, Mapping[int, tuple[int, int]]]
    ) -> dict[int, dict[str, TopicPolicy]]:
        """The policies of these namespaces, of which blocks that are known by their digests are not read."""
        wanted, gone = {}, {}
        for number, blocks in digests.items():
            known = self._digests.get(number, {})
            wanted[number] = [block for block, digest in blocks.items() if known.get(block) != digest]
            gone[number] = {*wanted[number], *(known.keys() - blocks.keys())}
        read: dict[int, dict[str, TopicPolicy]] = {number: {} for number in digests}
        for row in _rows_of(connection, wanted):
            topic, policy = row["topic"].decode(), _policy_of(row)
            before = self._policies.get(row["namespace"], {}).get(topic)
            read[row["namespace"]][topic] = before if before == policy and before is not None else policy
        for number, some in read.items():
            if gone[number]:
                for topic, policy in self._policies.get(number, {}).items():
                    if _block_of(topic) not in gone[number]:
                        some[topic] = policy
            else:
                read[number] = self._policies.get(number, {})
        return read


def _digests_of(connection: Connection, numbers: Sequence[int]) -> dict[int, dict[int, tuple[int, int]]]:
    found: dict[int, dict[int, tuple[int, int]]] = {number: {} for number in numbers}
    statement = _DIGESTS.where(TOPIC_POLICY.c.namespace.in_(numbers)).group_by(TOPIC_POLICY.c.namespace, _BLOCK)
    for number, block, count, digest in connection.execute(statement):
        found[number][block] = (count, digest)
    return found


def _rows_of(connection: Connection, blocks: Mapping[int, Sequence[int]]) -> Iterator[RowMapping]:
    mine = [and_(TOPIC_POLICY.c.namespace == number, _BLOCK.in_(wanted)) for number, wanted in blocks.items() if wanted]
    if mine:
        yield from connection.execute(select(TOPIC_POLICY).where(or_(*mine))).mappings()


def _block_of(topic: str) -> int:
    return crc32(topic.encode()) >> 24


class MetaPolicies(ABC):
    """A part of foqs.storage.meta.MetaStore, which says what its methods raise besides."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Connection]: ...

    def set_topic_policy(self, name: str, topic: str, changes: object) -> TopicPolicy:
        """Change what is not None in `changes` in the policy of a topic, all or nothing.

        Raises UnknownNamespaceError, and InvalidArgumentError also where there are too many policies.
        """
        with self._transaction() as connection:
            mine = select(NAMESPACE.c.number).where(NAMESPACE.c.name == name.encode()).with_for_update()
            number = connection.execute(mine).scalar()
            if number is None:
                raise UnknownNamespaceError(f"namespace {name!r:.80} does not exist: create it first")
            columns = TOPIC_POLICY.c
            here = and_(columns.namespace == number, columns.topic == topic.encode())
            row = connection.execute(select(TOPIC_POLICY).where(here)).mappings().one_or_none()
            before = NO_POLICY if row is None else _policy_of(row)
            after = with_policy_changes(before, changes)
            if after == NO_POLICY:
                connection.execute(delete(TOPIC_POLICY).where(here))
            else:
                if row is None:
                    _check_room_for_policy(connection, number, name)
                values = {**asdict(after), "reason": after.reason.encode()}
                statement = insert(TOPIC_POLICY).values(namespace=number, topic=topic.encode(), **values)
                connection.execute(statement.on_duplicate_key_update(values))
            version = secrets.randbits(_VERSION_BITS) | 1
            connection.execute(update(NAMESPACE).where(NAMESPACE.c.number == number).values(policies_version=version))
        return after

    def page_topic_policies(self, number: int, prefix: str, after: str, limit: int) -> list[TopicPolicyEntry]:
        """The first `limit` policies of a namespace, by topic, that begin with `prefix` and come after `after`."""
        topic, first = TOPIC_POLICY.c.topic, prefix.encode()
        # Names are of UTF-8, which has no byte 0xff.
        mine = and_(topic > after.encode(), topic >= first, topic < first + b"\xff")
        statement = select(TOPIC_POLICY).where(TOPIC_POLICY.c.namespace == number, mine).order_by(topic).limit(limit)
        with self._transaction() as connection:
            rows = connection.execute(statement).mappings().all()
        return [TopicPolicyEntry.of(row["topic"].decode(), _policy_of(row)) for row in rows]


def _check_room_for_policy(connection: Connection, number: int, name: str) -> None:
    everywhere = select(func.count()).select_from(TOPIC_POLICY)
    here: int = connection.execute(everywhere.where(TOPIC_POLICY.c.namespace == number)).scalar_one()
    if here >= limits.TOPIC_POLICIES_PER_NAMESPACE_MAX:
        raise InvalidArgumentError(
            f"{here} topics of namespace {name!r} have policies, and the limit is "
            f"{limits.TOPIC_POLICIES_PER_NAMESPACE_MAX}: set those of others back to the defaults, or use settings of "
            "the namespace"
        )
    count: int = connection.execute(everywhere).scalar_one()
    if count >= limits.TOPIC_POLICIES_MAX:
        raise InvalidArgumentError(
            f"{count} topics of all namespaces have policies, and the limit is {limits.TOPIC_POLICIES_MAX}: set those "
            "of others back to the defaults"
        )


def delete_policies_of(connection: Connection, namespace: int) -> None:
    connection.execute(delete(TOPIC_POLICY).where(TOPIC_POLICY.c.namespace == namespace))


def _policy_of(row: RowMapping) -> TopicPolicy:
    values = {field.name: row[field.name] for field in fields(TopicPolicy)}
    values["reason"] = row["reason"].decode()
    for name in ("enqueue_paused", "dequeue_paused"):
        values[name] = bool(row[name])
    return TopicPolicy(**values)
