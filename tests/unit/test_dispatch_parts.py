"""Each field of a topic's queue is written by one part of the dispatcher."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from foqs.host.dispatch import dispatcher
from foqs.host.dispatch.topic_queue import TopicQueue

_FOLDER = Path(dispatcher.__file__).parent
_MUTATORS = ("add", "append", "appendleft", "clear", "pop", "popleft", "remove", "setdefault", "take", "update")
_WRITING_METHODS = {"note_served": "prefetch", "enter": "rings", "leave": "rings"}
"""Methods of a queue, or of its namespace, that write fields of the queue, and the part that calls them."""
_QUEUES = ("queue", "one", "base")
"""The names that queues have in the code of the parts."""


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(_FOLDER.glob("*.py")):
        if path.stem != "topic_queue":
            yield path.stem, ast.parse(path.read_text())


def _fields_in(target: ast.expr) -> Iterator[str]:
    """The field of a queue that a target of an assignment, or what is mutated, belongs to."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, ast.Tuple):
        for part in target.elts:
            yield from _fields_in(part)
    elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id in _QUEUES:
        yield target.attr


def _written(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                for target in targets:
                    yield from _fields_in(target)
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                yield from _fields_in(target)
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _MUTATORS:
                yield from _fields_in(value)


def test_a_field_of_a_queue_is_written_by_one_part() -> None:
    writers: defaultdict[str, set[str]] = defaultdict(set)
    for module, tree in _trees():
        for field in _written(tree):
            writers[field].add(module)
    assert {field: of for field, of in writers.items() if len(of) > 1} == {}
    own = {"name", "base", "group", "namespace", "topic", "tenant", "_rate", "_rated_at_s", "_served_count"}
    assert set(writers) == set(TopicQueue.__slots__) - own, "the others are written by the queue's own methods"


def test_methods_that_write_fields_of_a_queue_are_called_by_one_part() -> None:
    for module, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = node.func.attr
                of = ast.unparse(node.func.value)
                if called in _WRITING_METHODS and of.endswith(("queue", "tenant")):
                    assert module == _WRITING_METHODS[called], f"{module} calls {of}.{called}"
