"""The principal of a call: its name, and the bits that it holds in the cluster and in namespaces.

The meanings of bits are in foqs.contract.permissions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import Final

from foqs.model import limits

_NONE: Final[Mapping[str, int]] = MappingProxyType({})


class Principal:
    """A caller, with its grants. They never change: a change of them makes another principal.

    A grant is of one namespace by its exact name, or of all namespaces whose names begin with a prefix, those included
    that do not exist yet. A caller holds what any of its grants gives. Names are compared as they are: text is equal,
    and begins with other text, exactly if its UTF-8 bytes are and do.
    """

    __slots__ = ("_names", "_prefixes", "anywhere", "cluster", "masks", "name")

    def __init__(
        self, name: str, cluster: int = 0, names: Mapping[str, int] = _NONE, prefixes: Mapping[str, int] = _NONE
    ) -> None:
        """`cluster` has the bits of the cluster, the others those in namespaces; "" is the prefix of all."""
        self.name = name
        self.cluster = cluster
        self._names = dict(names)
        self._prefixes = tuple(prefixes.items())
        self.anywhere = reduce(or_, [*names.values(), *prefixes.values()], 0)
        """The bits that it holds in any namespace."""
        self.masks: dict[int, tuple[str, int]] = {}
        """The names and bits of namespaces that were asked for, by their numbers."""

    def match(self, namespace_name: str) -> int:
        """Return the bits that it holds in a namespace of this name, existing or not."""
        held = self._names.get(namespace_name, 0)
        for prefix, bits in self._prefixes:
            if namespace_name.startswith(prefix):
                held |= bits
        return held

    def prefixes_of(self, namespace_name: str, bit: int) -> tuple[str, ...]:
        """Return the prefixes of grants that give a bit in a namespace of this name; none if its name alone does."""
        if self._names.get(namespace_name, 0) & bit:
            return ()
        return tuple(prefix for prefix, bits in self._prefixes if bits & bit and namespace_name.startswith(prefix))

    def match_all(self, name_prefix: str) -> int:
        """Return the bits that it holds in every possible namespace whose name begins so."""
        return reduce(or_, (bits for prefix, bits in self._prefixes if name_prefix.startswith(prefix)), 0)

    def held_in(self, namespace_name: str, number: int | None) -> int:
        """Return the bits that it holds in the namespace of this name, which has this number; None for an unknown
        namespace.

        Matches are kept by number, which callers cannot make up as they can names. A namespace that was recovered has
        its old number, and maybe another name: so the name is kept too. One in which the caller holds nothing is not
        kept, because the time of a refusal would tell the caller that the namespace exists.
        """
        if number is None:
            return self.match(namespace_name)
        kept = self.masks.get(number)
        if kept is not None and kept[0] == namespace_name:
            return kept[1]
        held = self.match(namespace_name)
        if held:
            if len(self.masks) >= limits.NAMESPACES_MAX:
                self.masks.clear()
            self.masks[number] = (namespace_name, held)
        return held


NOBODY: Final = Principal("nobody")
"""The principal of calls without a credential, unless access is open. It holds nothing."""
EVERYBODY: Final = Principal("everybody", -1, prefixes={"": -1})
"""The principal of calls without a credential while access is open. It holds all bits, and those of later versions."""
