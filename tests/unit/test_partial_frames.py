"""Bytes that are no call yet are bounded for an address and in total, and what is held up goes on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.transport.partial_frames import PartialFrames

PER_ADDRESS, TOTAL, FRAME, CHUNK = 100, 350, 60, 20


class Peer:
    """Sends a frame in chunks, as long as it is read; without `ends` it never has the last one."""

    def __init__(self, room: Room, address: str, *, ends: bool) -> None:
        self.room, self.address, self.ends = room, address, ends
        self.buffered_bytes = 0
        self.partial_since_s: float | None = None
        self.is_paused = self.is_gone = self.is_done = False

    def pause(self) -> None:
        assert not self.is_paused, "its deadline would count the pause"
        self.is_paused = True

    def resume(self) -> None:
        assert self.is_paused or self.is_gone
        self.is_paused = False

    def refuse(self, reason: str, detail: str) -> None:
        assert reason == "partial_frame_bytes_max"
        self.leave()

    def leave(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self.is_paused = False
            self._become(0)
            del self.room.peers[self]

    def send(self) -> None:
        if self.is_paused or self.is_gone or self.is_done:
            return
        self.partial_since_s = self.partial_since_s or self.room.tick()
        if self.buffered_bytes + CHUNK < FRAME:
            self._become(self.buffered_bytes + CHUNK)
        elif self.ends:
            self.is_done, self.partial_since_s = True, None
            self._become(0)

    def take(self) -> None:
        """What is there was whole frames that waited for their turn."""
        self.partial_since_s = None
        self._become(0)

    def decrypt(self) -> None:
        """The content of a record is shorter than the record, and no call was taken."""
        if self.buffered_bytes > 1:
            self._become(self.buffered_bytes - 1, has_progressed=False)

    def decrypt_late(self) -> None:
        """What came before it was held up is decrypted in its turn: the content is counted before the record is not."""
        if self.buffered_bytes > 1:
            self._become(self.buffered_bytes + CHUNK, has_progressed=False)
        if self.buffered_bytes > CHUNK + 1:
            self._become(self.buffered_bytes - CHUNK - 1, has_progressed=False)

    def _become(self, buffered_bytes: int, *, has_progressed: bool = True) -> None:
        added_bytes, self.buffered_bytes = buffered_bytes - self.buffered_bytes, buffered_bytes
        if added_bytes:
            self.room.partial_frames.changed(self, added_bytes, has_progressed=has_progressed)


class Room:
    def __init__(self) -> None:
        self.peers: dict[Peer, None] = {}
        self.partial_frames = PartialFrames(self.peers.keys(), TOTAL, PER_ADDRESS)
        self.now = 0.0

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def add(self, address: str, *, ends: bool = True) -> Peer:
        peer = Peer(self, address, ends=ends)
        self.peers[peer] = None
        return peer

    def buffered_bytes(self, address: str) -> int:
        return sum(peer.buffered_bytes for peer in self.peers if peer.address == address)


def test_past_its_bound_one_connection_of_an_address_is_read_and_then_the_next() -> None:
    room = Room()
    peers = [room.add("a") for _ in range(8)]
    other = room.add("b")
    for peer in peers:
        peer.send()
    assert [peer.is_paused for peer in peers] == [False] * 6 + [True] * 2
    other.send()
    assert not other.is_paused
    for _ in range(10):
        for peer in peers:
            peer.send()
        assert room.buffered_bytes("a") <= PER_ADDRESS + FRAME + 8 * CHUNK, "a frame, and what each brought last"
    assert all(peer.is_done for peer in peers)


def test_who_is_held_up_with_a_whole_frame_goes_on_once_that_is_taken() -> None:
    room = Room()
    peers = [room.add("a") for _ in range(7)]
    for peer in peers:
        peer.send()
    assert peers[-1].is_paused
    peers[-1].take()
    assert not peers[-1].is_paused


def test_who_is_held_up_stays_so_when_its_bytes_become_fewer_by_their_decryption() -> None:
    room = Room()
    peers = [room.add("a", ends=False) for _ in range(8)]
    for _ in range(20):
        for peer in peers:
            peer.send()
            peer.decrypt()
    assert sum(peer.is_paused for peer in peers) == 7, "one is read, and the same one until its frame is whole"
    assert room.buffered_bytes("a") <= PER_ADDRESS + FRAME + CHUNK


def test_others_go_on_when_there_is_room_however_slow_the_one_is_that_is_read() -> None:
    room = Room()
    *quick, slow, first, second = [room.add("a", ends=False) for _ in range(8)]
    for peer in room.peers:
        peer.send()
    assert [peer.is_paused for peer in room.peers] == [False] * 6 + [True] * 2
    for peer in quick[:3]:
        peer.take()
    assert (first.is_paused, second.is_paused) == (False, True)
    quick[3].take()
    assert not second.is_paused
    assert slow.buffered_bytes


def test_who_is_beyond_its_bound_makes_room_before_others() -> None:
    room = Room()
    good = room.add("good", ends=False)
    good.send()
    greedy = [room.add("greedy", ends=False) for _ in range(40)]
    for peer in greedy:
        peer.send()
    assert not good.is_gone
    assert sum(peer.is_gone for peer in greedy) == 40 + 1 - TOTAL // CHUNK


def test_what_never_ends_holds_the_others_of_its_address_up_until_it_is_gone() -> None:
    room = Room()
    never = [room.add("a", ends=False) for _ in range(8)]
    good = room.add("b")
    for _ in range(5):
        for peer in [*never, good]:
            peer.send()
    assert good.is_done
    assert sum(not peer.is_paused for peer in never) == 1
    for _ in range(8):
        next(peer for peer in never if not peer.is_paused and not peer.is_gone).leave()
    assert all(peer.is_gone for peer in never)


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), min_size=1, max_size=40),
    st.lists(
        st.tuples(
            st.integers(0, 39), st.sampled_from(["send", "send", "send", "take", "decrypt", "decrypt_late", "leave"])
        ),
        max_size=300,
    ),
)
def test_no_more_is_held_than_the_total_and_all_that_ends_comes_in(
    kinds: list[tuple[str, bool]], steps: list[tuple[int, str]]
) -> None:
    room = Room()
    peers = [room.add(address, ends=ends) for address, ends in kinds]
    for number, step in steps:
        peer = peers[number % len(peers)]
        getattr(peer, step)()
        assert sum(peer.buffered_bytes for peer in room.peers) <= TOTAL
        for address in "abcde":
            held_up = [peer for peer in room.peers if peer.address == address and peer.is_paused]
            reading = [peer for peer in room.peers if peer.address == address and not peer.is_paused]
            assert not held_up or any(peer.buffered_bytes for peer in reading), "somebody goes on"
            assert all(peer.buffered_bytes for peer in held_up)
    for peer in peers:
        if not peer.ends:
            peer.leave()
    for _ in range(4 * len(peers)):
        for peer in peers:
            peer.send()
    assert all(peer.is_done or peer.is_gone for peer in peers)
    assert room.buffered_bytes("a") == 0
