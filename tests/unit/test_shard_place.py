"""Who may take a shard on which server, and what was lost with another one."""

from __future__ import annotations

import pytest

from foqs.model.cluster import ShardRow, ShardUse
from foqs.model.errors import FoqsError, InvalidArgumentError, NotFoundError, UnavailableError
from foqs.model.shard_place import (
    EpochAsk,
    FoundShard,
    Remembered,
    lost_by_memory,
    lost_by_row,
    nobody_is_dead,
    refusal,
    refusal_without_row,
)
from foqs.storage.meta.meta_shards import Relocation, check_unparked
from foqs.storage.shard.server_name import NAME_BYTES_MAX, server_name


def row(owner: str = "one", server: str = "here", epoch: int = 5, first: int = 10, last: int = 20) -> ShardRow:
    return ShardRow(3, epoch, owner, 0, "", ShardUse.SERVING, "", "", "two", 0, server, first, last)


def found(server: str = "here", epoch: int = 5, owner: str = "one", number: int = 20) -> FoundShard:
    return FoundShard(server, epoch, owner, number)


def one_is_dead(owner: str, epoch: int) -> bool:
    return (owner, epoch) == ("one", 5)


@pytest.mark.parametrize(
    ("kept", "server", "is_dead", "may"),
    [
        (row(), "here", nobody_is_dead, True),
        (row(), "there", nobody_is_dead, False),
        (row(), "there", one_is_dead, True),
        (row(epoch=6), "there", one_is_dead, False),
        (row(server=""), "there", nobody_is_dead, True),
        (row(owner=""), "there", nobody_is_dead, True),
        (row(owner="two"), "there", nobody_is_dead, True),
    ],
    ids=["its server", "a copy", "a copy of a dead one", "of a later epoch", "its word", "nobody", "itself"],
)
def test_a_shard_is_taken_where_its_owner_served_it_or_once_that_one_is_dead_or_has_left(
    kept: ShardRow, server: str, is_dead: object, may: bool
) -> None:
    """That `two` has asked for the shard is no word of its owner: the row says so in all cases."""
    problem = refusal(kept, "two", EpochAsk(found(server), 5), is_dead)  # type: ignore[arg-type]
    assert (problem == "") is may, problem


def test_a_refusal_names_both_servers_and_the_owner() -> None:
    problem = refusal(row(), "two", EpochAsk(found("there"), 5), nobody_is_dead)
    assert all(word in problem for word in ("'one'", "here", "there", "correct the URL"))


@pytest.mark.parametrize(("server", "may"), [("here", True), ("there", False), ("", False)])
def test_an_owner_goes_on_under_a_later_epoch_if_that_one_was_for_its_own_server(server: str, may: bool) -> None:
    """However dead its owner is, who may have written elsewhere."""
    ask = EpochAsk(found("here", epoch=4), 4, is_renewal=True)
    assert (refusal(row(server=server), "two", ask, one_is_dead) == "") is may


@pytest.mark.parametrize(
    ("owner", "server", "is_renewal", "may"),
    [("one", "", False, False), ("two", "", False, False), ("two", "here", False, False), ("", "", False, False),
     ("two", "here", True, True), ("two", "", True, False), ("one", "here", True, False)],
    ids=["another's that was left", "its own that it left", "its own opened anew", "nobody's", "its own that it serves",
         "its own after it said that it left", "taken by another one"],
)  # fmt: skip
def test_a_parked_shard_is_taken_by_nobody_and_only_its_owner_goes_on_until_it_has_left(
    owner: str, server: str, is_renewal: bool, may: bool
) -> None:
    parked = row(owner=owner, server=server)._replace(use=ShardUse.PARKED)
    problem = refusal(parked, "two", EpochAsk(found(), 5, is_renewal=is_renewal), one_is_dead)
    assert (problem == "") is may
    assert may or "foqs shard unpark 3" in problem


def test_an_epoch_that_the_meta_database_has_lost_is_waited_for() -> None:
    behind = row(owner="old", epoch=2)
    ask = EpochAsk(found(), 5)
    assert "has lost" in refusal(behind, "two", ask, nobody_is_dead)
    assert refusal(behind, "two", ask, one_is_dead) == ""
    assert refusal(behind, "one", ask, nobody_is_dead) == ""
    assert "has lost" in refusal_without_row(3, "two", found(), nobody_is_dead)
    assert refusal_without_row(3, "two", found(owner="", epoch=0), nobody_is_dead) == ""


@pytest.mark.parametrize(
    ("there", "lost"),
    [
        (found(number=20), 0),
        (found(number=25), 0),
        (found(number=17), 3),
        (found(epoch=4, number=8), 12),
        (found(epoch=4, number=30), 10),
    ],
    ids=["all", "more than was told", "behind", "without the last epoch", "another branch"],
)
def test_what_was_told_and_is_not_there_is_lost(there: FoundShard, lost: int) -> None:
    assert lost_by_row(row(), there) == lost
    assert lost_by_row(None, there) == 0


def test_what_a_process_alone_knows_is_counted_by_it_and_only_once() -> None:
    mine = Remembered(epoch=5, committed_number=24, reported_number=20)
    there = found(number=17)
    assert lost_by_row(row(), there) + lost_by_memory(row(), there, mine) == 7
    # Another one has taken the shard at 17, and has counted what it was told of.
    taken = row(owner="two", epoch=6, first=17, last=17)
    assert lost_by_memory(taken, None, mine) == 4
    assert lost_by_memory(row(owner="two", epoch=6, first=30), None, mine) == 0
    # That one has never served: all is there that this process wrote.
    assert lost_by_memory(taken, found(number=24), mine) == 0


def test_servers_differ_in_each_part_of_their_names() -> None:
    base = {"server_uuid": "u", "hostname": "h", "port": "1", "datadir": "/d"}
    others = [base | {key: "other"} for key in base]
    assert len({server_name(variables) for variables in [base, *others]}) == 5
    without = {key: value for key, value in base.items() if key != "server_uuid"}
    assert server_name(without).endswith(" -")


def test_a_long_name_of_a_server_fits_and_is_like_no_other() -> None:
    names = {server_name({"hostname": "ö" * 300, "datadir": f"/{at}"}) for at in range(2)}
    assert len(names) == 2
    assert all(len(name.encode()) <= NAME_BYTES_MAX for name in names)


PARKED = row(server="")._replace(use=ShardUse.PARKED, place="mysql://a/d")
PLACES = {"mysql://a/d": 3, "mysql://b/d": 4}
KEPT = PARKED._replace(server="here")


@pytest.mark.parametrize(
    ("kept", "place", "allow_older", "error"),
    [
        (PARKED, "mysql://c/d", False, None),
        (PARKED, "mysql://a/d", False, None),
        (PARKED._replace(owner=""), "mysql://c/d", False, None),
        (KEPT, "mysql://c/d", False, InvalidArgumentError),
        (KEPT, "mysql://c/d", True, None),
        (KEPT._replace(epoch=6), "mysql://c/d", True, UnavailableError),
        (PARKED, "mysql://b/d", True, InvalidArgumentError),
        (PARKED._replace(use=ShardUse.DRAINING), "mysql://c/d", True, InvalidArgumentError),
        (PARKED._replace(use=ShardUse.REMOVED), "mysql://c/d", True, NotFoundError),
        (None, "mysql://c/d", True, NotFoundError),
    ],
    ids=["left", "where it is", "nobody's", "its owner is dead", "its owner is dead, and a loss is accepted",
         "its owner lives", "another's place", "served", "removed", "unknown"],
)  # fmt: skip
def test_a_shard_is_relocated_while_it_is_parked_and_nobody_has_it(
    kept: ShardRow | None, place: str, allow_older: bool, error: type[FoqsError] | None
) -> None:
    """`one` under epoch 5 is dead."""
    relocation = Relocation(one_is_dead, allow_older)
    if error is None:
        relocation.check(kept, 3, place, PLACES)
        return
    with pytest.raises(error) as refused:
        relocation.check(kept, 3, place, PLACES)
    assert refused.value.nothing_done or error is not UnavailableError


@pytest.mark.parametrize("changed", [PARKED._replace(epoch=6), PARKED._replace(last_number=21)])
def test_a_shard_is_not_relocated_if_it_got_transactions_since_its_new_database_was_checked(changed: ShardRow) -> None:
    relocation = Relocation(one_is_dead, allow_older=False, checked=PARKED)
    relocation.check(PARKED, 3, "mysql://c/d", PLACES)
    with pytest.raises(UnavailableError, match="has changed while"):
        relocation.check(changed, 3, "mysql://c/d", PLACES)


@pytest.mark.parametrize("owner", ["one", "two", ""])
@pytest.mark.parametrize("is_renewal", [True, False])
def test_nobody_takes_or_keeps_the_former_database_of_a_relocated_shard(owner: str, is_renewal: bool) -> None:
    """Two databases on one server have the same `server` and different locks."""
    moved = row(owner=owner)._replace(place="mysql://here/new", is_relocated=True)
    for place, may in (("mysql://here/old", False), ("", False), ("mysql://here/new", True)):
        ask = EpochAsk(found(), 5, is_renewal=is_renewal, place=place)
        assert (refusal(moved, "two", ask, nobody_is_dead) == "") is may


def test_a_parked_shard_does_not_begin_to_drain() -> None:
    check_unparked(PARKED, ShardUse.SERVING)
    check_unparked(row(), ShardUse.DRAINING)
    with pytest.raises(InvalidArgumentError, match="foqs shard unpark 3"):
        check_unparked(PARKED, ShardUse.DRAINING)
