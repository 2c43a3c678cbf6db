"""The blocking client is what scripts/generate_sync.py makes of the asyncio one."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import foqs
from scripts import generate_sync


@pytest.mark.parametrize("source", generate_sync.sources(), ids=lambda path: path.name)
def test_a_generated_module_is_current_and_says_where_to_edit(source: Path) -> None:
    text = generate_sync.target_of(source).read_text()
    assert text == generate_sync.generated(source.read_text(), source.name), "run: python -m scripts.generate_sync"
    assert text.startswith(f"# Generated from foqs/client/aio/{source.name} ")


def test_the_blocking_client_has_the_generated_modules_and_the_handwritten_ones() -> None:
    names = {path.name for path in generate_sync.TARGET.glob("*.py")}
    assert names == {path.name for path in generate_sync.sources()} | generate_sync.HANDWRITTEN


def test_nothing_of_asyncio_is_left_in_what_is_generated() -> None:
    for source in generate_sync.sources():
        text = generate_sync.target_of(source).read_text()
        _, _, body = text.partition("\n")
        assert not {"async", "await", "asyncio", "Async", "task"} & set(body.replace("`", " ").split()), source.name


def test_every_replaced_sentence_stands_in_the_source() -> None:
    assert generate_sync.unused_prose() == []


@pytest.mark.parametrize(
    ("blocking", "asynchronous"),
    [
        (foqs.Client, foqs.AsyncClient),
        (foqs.AdminClient, foqs.AsyncAdminClient),
        (foqs.Worker, foqs.AsyncWorker),
        (foqs.Consumer, foqs.AsyncConsumer),
        (foqs.LeasedItem, foqs.AsyncLeasedItem),
    ],
)
def test_both_flavours_have_the_same_methods_with_the_same_arguments(blocking: type, asynchronous: type) -> None:
    def arguments(cls: type) -> dict[str, list[str]]:
        methods = inspect.getmembers(cls, inspect.isfunction)
        return {name: list(inspect.signature(method).parameters) for name, method in methods if name[0] != "_"}

    assert arguments(blocking) == arguments(asynchronous)
