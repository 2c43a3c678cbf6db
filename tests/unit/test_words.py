"""What a reader may rely on: classes say what they are for, names have one meaning, doc comments are sentences."""

from __future__ import annotations

import ast
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import foqs
from tests.support.sources import parsed

_ROOT = Path(foqs.__file__).parent
_METHODS_MIN = 5
"""A class with so many methods needs more than its name."""
_GENERATED = ("client/sync/",)
"""These files stand for others."""


def _classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in sorted(_ROOT.rglob("*.py")):
        name = str(path.relative_to(_ROOT))
        if not name.startswith(_GENERATED):
            for node in parsed(path).body:
                if isinstance(node, ast.ClassDef):
                    yield name, node


def test_a_class_with_many_methods_says_what_it_is_for() -> None:
    silent = [
        f"{file}: {node.name}"
        for file, node in _classes()
        if ast.get_docstring(node) is None
        and sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body) >= _METHODS_MIN
    ]
    assert silent == []


def test_the_public_name_of_a_class_is_that_of_one_class() -> None:
    files: defaultdict[str, list[str]] = defaultdict(list)
    for file, node in _classes():
        if not node.name.startswith("_"):
            files[node.name].append(file)
    assert {name: of for name, of in files.items() if len(of) > 1} == {}


_PREPOSITION = re.compile(
    r"(Of|By|With|In|For|Since|Until|Beside|At|On|To|From|Under|Without|Within|Behind|Between|Among|Per|Against|Beyond|As"
    r"|Except|But)\b"
)
"""Who begins with one of these often means "this is of ..." and leaves out the noun."""
_VERB = re.compile(r"\b(is|are|was|were|has|have|had|can|may|must|shall|will|does|do|did|to|\w+(ed|es|[^s]s))\b")


@cache
def _doc_comments() -> list[tuple[str, str]]:
    """The place and the text of every docstring, and of every string that stands below an assignment."""
    return list(_read_doc_comments())


def _read_doc_comments() -> Iterator[tuple[str, str]]:
    for path in sorted(_ROOT.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            body = getattr(node, "body", None)
            if not isinstance(body, list):
                continue
            is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            for number, part in enumerate(body):
                match part:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        follows = number > 0 and isinstance(body[number - 1], ast.Assign | ast.AnnAssign)
                        if follows or (number == 0 and is_documented):
                            yield f"{path.relative_to(_ROOT)}:{part.lineno}", text.strip()


def _what_is_wrong(comment: str) -> str:
    first_sentence = comment.partition(". ")[0]
    if not (comment[0].isupper() or comment[0] in "`'\"" or comment[0].isdigit()):
        return "begins without a capital letter"
    if not comment.endswith((".", "```")):
        return "ends without a full stop"
    if _PREPOSITION.match(comment):
        return "begins with a preposition, and its noun is missing"
    if re.match(r"(What|Whether)\b", comment) and not _VERB.search(first_sentence.partition(" ")[2]):
        return "has no verb"
    return ""


def test_a_doc_comment_is_a_sentence_or_a_noun_phrase_with_its_noun() -> None:
    comments = _doc_comments()
    assert len(comments) > 1_000
    wrong = [f"foqs/{place} {what}: {text[:60]}" for place, text in comments if (what := _what_is_wrong(text))]
    assert wrong == []


@pytest.mark.parametrize(
    ("comment", "is_right"),
    [
        ("Items by key.", True),
        ("Whether the shard is owned.", True),
        ("`lane` is the timer lane.", True),
        ("of the host.", False),
        ("Items by key", False),
        ("Of all connections together.", False),
        ("By shard: those of healthy shards.", False),
        ("Whether owner.", False),
    ],
)
def test_the_rule_for_doc_comments_can_tell(comment: str, *, is_right: bool) -> None:
    assert (_what_is_wrong(comment) == "") is is_right


_RARE = {
    r"\b(what|whatever|whoever|whichever|whether)\b": 42,  # a clause as a noun: name the thing
    r"\bmay\b": 29,  # permission alone
    r"\b(go|goes|gone|went|going)\b": 13,
    r"\bthere (is|are|was|were)\b": 16,
    r"\b(told|tells?|telling)\b": 15,
    r"\b(none|nothing) of\b|\bof them\b": 15,
    r"\bso (many|much|long|often|far)\b": 18,
}
"""The most doc comments with words that hide the noun or the verb."""


@pytest.mark.parametrize("pattern", _RARE)
def test_doc_comments_name_the_thing_and_use_the_verbs_of_the_field(pattern: str) -> None:
    found = [f"foqs/{place}: {text[:80]}" for place, text in _doc_comments() if re.search(pattern, text, re.IGNORECASE)]
    assert len(found) <= _RARE[pattern], found


_REPLACED = re.compile(
    r"(?:^|_)(news|hears?|heard|learn(?:s|ed)?|wish(?:es)?|seeks?|sought|hungry|starved|roomless"
    r"|withdrawn?|looks?(?!_up)|looked(?!_up)|happened|on_thread|tells?|told|give_back|hand_out)(?:_|$)"
)
"""Words that the project has replaced: report and notice, interest, waiting_for_token, unclaim, check, lane."""
_OF_THE_WIRE = {"seek", "wish", "wishes", "TopicWish", "SeekRequest", "NOT_LOOKED_AT"}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def test_names_have_the_words_of_the_project_and_not_those_that_it_has_replaced() -> None:
    found: set[str] = set()
    for path in sorted(_ROOT.rglob("*.py")):
        with path.open() as lines:
            names = {token.string for token in tokenize.generate_tokens(lines.readline) if token.type == tokenize.NAME}
        place = path.relative_to(_ROOT)
        found |= {f"foqs/{place}: {name}" for name in names - _OF_THE_WIRE if _REPLACED.search(_snake(name))}
    assert not found


@pytest.mark.parametrize(
    ("name", "is_replaced"),
    [("_news", True), ("seek_again", True), ("LOOK_MS", True), ("look_up", False), ("looked_up", False),
     ("TopicSought", True), ("overlooked", False), ("renews", False), ("is_to_be_told", True), ("teller", False)],
)  # fmt: skip
def test_the_rule_for_names_can_tell(name: str, *, is_replaced: bool) -> None:
    assert bool(_REPLACED.search(_snake(name))) is is_replaced
