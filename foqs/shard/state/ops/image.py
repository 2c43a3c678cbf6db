"""Images of full tables of dedup ids go to the database in the background, so that a new owner need not read all ids.

One image is made at a time, a part with each of some transactions; when it is whole, the earlier one of the same table
goes. What a shard knows is committed, so an image never has an id that the log has not. A new owner reads images and
then only the rest of the log (foqs/shard/writer/seen_loading.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.seen import SeenTable, SeenWindow
from foqs.model.seen_image import HEAD_PART, ImageKey, ImageMaker
from foqs.shard.port import SeenPart, StoredImage, Transaction, TransactionResult
from foqs.shard.state.ops.operation import Operation

IMAGE_IDS_MIN = 10_000
"""Ids of a table of which an image is made. Fewer are read from the log as fast."""
IMAGE_STEPS = 4
"""A table that still grows gets an image anew when so large a part of it has come: so a new owner reads at most that
part from the log, and images have about 13 bytes for each id in all.
"""
IMAGE_PAUSE_MS = 25
"""The pause between two parts of images: at most 4 MiB of them go to a shard's database in a second."""
IMAGE_PARTS_GONE = 16
"""Parts of an image that one transaction deletes."""


class Images:
    """Knows which images are stored, makes the ones that are missing, and deletes those that nobody needs."""

    def __init__(self, windows: Mapping[int, SeenWindow], loading: Mapping[int, object], found: Sequence[StoredImage]):
        """`windows` and `loading` are those of `Dedup`; `found` is what a new owner finds."""
        self.making: ImageMaker | None = None
        self.gone: dict[ImageKey, StoredImage] = {}
        """Images to be deleted, with the parts that are left of them."""
        self.unused: dict[int, list[StoredImage]] = {}
        """The stored images of the namespaces whose log is still to be read."""
        self.stored: dict[int, dict[int, StoredImage]] = {}
        """The images of the tables that are in memory, by namespace and the number of the table's first id."""
        self._windows = windows
        self._due_ms = 0
        for image in found:
            if image.is_whole and image.key.namespace in loading:
                self.unused.setdefault(image.key.namespace, []).append(image)
            else:
                self._drop(image)

    # ---- a new owner ----

    def next_of(self, window: SeenWindow) -> StoredImage | None:
        """The image that is to be read next, if there is one of what the window does not know yet."""
        fitting = [
            image
            for image in self.unused.get(window.namespace, ())
            if window.end < image.key.end <= window.expected_end
            and (image.key.first >= window.end or not window.tables)
        ]  # fmt: skip
        return min(fitting, key=lambda image: (image.key.first, -image.key.ids_count), default=None)

    def used(self, image: StoredImage) -> None:
        """Note that the table of an image is in memory."""
        self._take_out(image)
        self.stored.setdefault(image.key.namespace, {})[image.key.first] = image

    def refuse(self, image: StoredImage) -> None:
        """Refuse an image that is none of this log, or broken."""
        self._take_out(image)
        self._drop(image)

    def loaded(self, namespace: int) -> None:
        """The log is read: what was not used of the images is of no use."""
        for image in self.unused.pop(namespace, ()):
            self._drop(image)

    def _take_out(self, image: StoredImage) -> None:
        self.unused[image.key.namespace].remove(image)

    def _drop(self, image: StoredImage) -> None:
        self.gone[image.key] = image

    # ---- what is to be done ----

    def look(self, window: SeenWindow) -> None:
        """Find out what there is to do for a window whose log is read."""
        stored = self.stored.get(window.namespace)
        if stored:
            tables = {table.first for table in window.tables}
            for first in [first for first in stored if first not in tables]:
                self._drop(stored.pop(first))
        if self.making is None:
            for table in window.tables:
                if self._is_wanted(window, table):
                    self.making = ImageMaker(window.namespace, table, window.marks)
                    break

    def _is_wanted(self, window: SeenWindow, table: SeenTable) -> bool:
        image = self.stored.get(window.namespace, {}).get(table.first)
        known_count = 0 if image is None else image.key.ids_count
        new_count = table.whole_count - known_count
        left_count = table.first + table.whole_count - window.edge
        if new_count <= 0 or min(table.whole_count, left_count) < IMAGE_IDS_MIN or window.is_doomed:
            return False
        if table.is_made_smaller:
            return False  # It does not tell which of its ids came first.
        if ImageKey(window.namespace, table.first, table.whole_count) in self.gone:
            return False  # First what is left of it goes.
        grows = table is window.tables[-1] and table.room > 0
        return not grows or new_count >= max(IMAGE_IDS_MIN, table.capacity // IMAGE_STEPS)

    def forget(self, namespace: int) -> None:
        """Forget the images of a namespace that has no window any more."""
        for image in self.stored.pop(namespace, {}).values():
            self._drop(image)

    def is_due(self, now: Now) -> bool:
        return (self.making is not None or bool(self.gone)) and now.steady_ms >= self._due_ms

    # ---- the parts of a transaction ----

    def begin(self, transaction: Transaction, now: Now) -> list[Imaging]:
        """Write one part of the image that is made, or delete some of one that goes."""
        self._give_up_needless()
        if self.gone:
            image = next(iter(self.gone.values()))
            operation = Imaging(self, None, image, min(image.parts_first + IMAGE_PARTS_GONE, image.parts_end))
        elif self.making is not None:
            operation = Imaging(self, self.making, None, 0)
        else:
            return []
        self._due_ms = now.steady_ms + IMAGE_PAUSE_MS
        operation.write(transaction, now)
        return [operation]

    def _give_up_needless(self) -> None:
        """The table of the image that is being made may have gone meanwhile."""
        maker = self.making
        if maker is not None:
            window = self._windows.get(maker.key.namespace)
            if window is None or maker.table not in window.tables:
                self.making = None
                # The head comes last: there is none.
                parts_end = maker.next_number or maker.parts_count + 1
                if parts_end > 1:
                    self._drop(StoredImage(maker.key, 1, parts_end, False))

    def written(self, maker: ImageMaker) -> None:
        """Note that the next part of an image is committed."""
        if maker.written():
            self.making = None
            key = maker.key
            stored = self.stored.setdefault(key.namespace, {})
            if key.first in stored:
                self._drop(stored[key.first])
            stored[key.first] = StoredImage(key, HEAD_PART, maker.parts_count + 1, True)

    def deleted(self, image: StoredImage, parts_end: int) -> None:
        """Note that the parts of an image before this one are deleted."""
        del self.gone[image.key]
        if parts_end < image.parts_end:
            self.gone[image.key] = image._replace(parts_first=parts_end, is_whole=False)


class Imaging(Operation):
    """A part of an image that one transaction writes, or some that it deletes."""

    __slots__ = ("_gone", "_maker", "_parts_end", "_source")

    def __init__(self, source: Images, maker: ImageMaker | None, gone: StoredImage | None, parts_end: int) -> None:
        self._source = source
        self._maker = maker
        self._gone = gone
        self._parts_end = parts_end

    def write(self, transaction: Transaction, now: Now) -> None:
        maker, gone = self._maker, self._gone
        if maker is not None:
            transaction.seen_parts_new.append(SeenPart(maker.key, maker.next_number, maker.next_part()))
        if gone is not None:
            transaction.seen_parts_gone.append((gone.key, gone.parts_first, self._parts_end))

    def committed(self, result: TransactionResult, now: Now) -> None:
        if self._maker is not None:
            self._source.written(self._maker)
        if self._gone is not None:
            self._source.deleted(self._gone, self._parts_end)

    def rolled_back(self, error: FoqsError) -> None:
        """Nothing: the part is written or deleted again."""

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        """The next owner finds what is there."""
