"""Ids from the content of rows: the same for another order of the same rows, and different for each equal row."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.client.encoded import EncodedItems
from foqs.model.errors import InvalidArgumentError
from foqs.spark.dedup_ids import ID_BYTES_MAX, ContentIds


def ids(rows: list[bytes], *, job: str = "job", partition: int = 0, parts: int = 1) -> list[tuple[bytes, str]]:
    """Each row with its id; the rows come in `parts` batches."""
    maker = ContentIds(job, partition)
    size = max(1, -(-len(rows) // parts))
    made: list[str] = []
    for at in range(0, len(rows), size):
        made += maker.take(EncodedItems.of(rows[at : at + size]))
    return list(zip(rows, made, strict=True))


@given(st.lists(st.binary(max_size=2), max_size=60), st.randoms(use_true_random=False), st.integers(1, 4))
def test_another_order_and_other_batches_of_the_same_rows_make_the_same_ids(
    rows: list[bytes], chance: random.Random, parts: int
) -> None:
    shuffled = rows.copy()
    chance.shuffle(shuffled)
    assert Counter(ids(rows)) == Counter(ids(shuffled, parts=parts))


@given(st.lists(st.binary(max_size=1), max_size=60))
def test_no_two_rows_of_a_task_share_an_id(rows: list[bytes]) -> None:
    made = [made for _, made in ids(rows)]
    assert len(set(made)) == len(made)
    assert all(1 <= len(text.encode()) <= ID_BYTES_MAX for text in made)


def test_equal_rows_of_other_jobs_and_partitions_have_other_ids() -> None:
    runs = [ids([b"row"], job=job, partition=partition)[0][1] for job in ("a", "b") for partition in (0, 1)]
    assert len(set(runs)) == 4
    assert ids([b"row"], job="1/a", partition=1) != ids([b"row"], job="a", partition=11)


def test_a_task_with_more_different_rows_than_it_may_remember_fails_and_says_what_to_do() -> None:
    maker = ContentIds("job", 0, rows_max=3)
    maker.take(EncodedItems.of([b"1", b"2", b"3", b"1", b"1"]))
    with pytest.raises(InvalidArgumentError, match=r"more than 3 different rows.*repartition into more tasks"):
        maker.take(EncodedItems.of([b"4"]))
