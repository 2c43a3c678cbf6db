"""An item's life: which phase may follow which, what its topic counts meanwhile, and that one place decides both."""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import foqs
from foqs.model import item as life
from foqs.model.item import Phase, ShardItem, by_topic, move, move_all
from foqs.model.topic import ShardTopic
from foqs.model.window_budget import WindowBudget

FOQS = Path(foqs.__file__).parent
LIFE_CYCLE = FOQS / "model" / "item.py"
COUNTS = FOQS / "model" / "topic.py"

ROWS = {Phase.READY, Phase.CLAIMING, Phase.PREFETCHED, Phase.LEASED, Phase.SETTLING}
"""The phases of items whose rows are committed and still there."""
LEASED = {Phase.LEASED, Phase.SETTLING}


def make_item(topic: ShardTopic, key: int) -> ShardItem:
    return ShardItem(key, topic, 0, 0, key, Phase.INSERTING)


def make_topic(name: str = "a") -> ShardTopic:
    return ShardTopic(0, 1, 7, name, WindowBudget(), {}, stored=True)


def test_a_topic_counts_what_the_phases_of_its_items_say_however_they_move() -> None:
    chance = random.Random(5)
    topic = make_topic()
    items = [make_item(topic, key) for key in range(20)]
    met: set[tuple[Phase, Phase]] = set()
    for _ in range(5_000):
        item = chance.choice(items)
        followers = list(life._MOVES[item.phase])
        if not followers:
            items[item.key] = make_item(topic, item.key)
            continue
        new = chance.choice(followers)
        met.add((item.phase, new))
        move(item, new)
        phases = [item.phase for item in items]
        assert topic.rows == sum(phase in ROWS for phase in phases)
        assert topic.leased == sum(phase in LEASED for phase in phases)
    assert met == {(old, new) for old, followers in life._MOVES.items() for new in followers}


@pytest.mark.parametrize(("old", "new"), [(old, new) for old in Phase for new in Phase if new not in life._MOVES[old]])
def test_no_item_enters_a_phase_that_cannot_follow(old: Phase, new: Phase) -> None:
    topic = make_topic()
    item = make_item(topic, 1)
    item.phase = old
    with pytest.raises(AssertionError, match=f"{old.name} cannot become {new.name}"):
        move(item, new)
    with pytest.raises(AssertionError, match=f"{old.name} cannot become {new.name}"):
        move_all(topic, [item], old, new)
    assert (item.phase, topic.rows, topic.leased) == (old, 0, 0)


def test_many_items_move_and_count_as_one_after_the_other_do() -> None:
    one, many = make_topic(), make_topic()
    for phase in (Phase.READY, Phase.LEASED, Phase.SETTLING, Phase.GONE):
        for topic in (one, many):
            items = [make_item(topic, key) for key in range(3)]
            path = list(_path_to(phase))
            for old, new in path:
                if topic is many:
                    move_all(topic, items, old, new)
                else:
                    for item in items:
                        move(item, new)
        assert (one.rows, one.leased) == (many.rows, many.leased)


def _path_to(phase: Phase) -> Iterator[tuple[Phase, Phase]]:
    path = [Phase.INSERTING, Phase.READY, Phase.LEASED, Phase.SETTLING, Phase.GONE]
    path = path[: path.index(phase) + 1]
    yield from itertools.pairwise(path)


def test_an_item_in_another_phase_than_its_fellows_stops_their_move() -> None:
    topic = make_topic()
    first, second = make_item(topic, 1), make_item(topic, 2)
    move(second, Phase.READY)
    with pytest.raises(AssertionError, match="the item is READY, not INSERTING"):
        move_all(topic, [first, second], Phase.INSERTING, Phase.ARRIVING)


def test_items_stand_by_topic_in_their_order() -> None:
    a, b = make_topic("a"), make_topic("b")
    items = [make_item(topic, key) for key, topic in enumerate((a, b, a, a, b))]
    assert {topic.name: [item.key for item in found] for topic, found in by_topic(items).items()} == {
        "a": [0, 2, 3],
        "b": [1, 4],
    }


def sources(*words: str) -> Iterator[tuple[Path, ast.AST]]:
    """What stands in the modules that have one of the words in them."""
    for path in sorted(FOQS.rglob("*.py")):
        text = path.read_text()
        if any(word in text for word in words):
            for node in ast.walk(ast.parse(text)):
                yield path, node


def test_one_module_writes_the_phase_of_an_item() -> None:
    writers = {
        path
        for path, node in sources("phase")
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and target.attr == "phase"
    }
    assert writers == {LIFE_CYCLE}


def test_one_module_writes_the_counts_of_topics() -> None:
    fields = {"rows", "leased", "delayed", "dead"}
    assigners = {
        path
        for path, node in sources(*fields)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute) and node.target.attr in fields
        # The facts of an explanation are sums that nobody keeps.
        if not (isinstance(node.target.value, ast.Name) and node.target.value.id in {"everything", "found"})
    }
    assert assigners == {COUNTS}
    callers = {
        path
        for path, node in sources("count(", "count_leased(")
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (
            node.func.attr == "count_leased"
            or (node.func.attr == "count" and {keyword.arg for keyword in node.keywords} & fields)
        )
    }
    assert callers == {LIFE_CYCLE}
