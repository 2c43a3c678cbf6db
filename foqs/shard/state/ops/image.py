"""Images of full tables of dedup ids are stored in the background, so that a new owner need not read all ids.

One image is made at a time, one part per transaction; when it is whole, the earlier image of the same table is deleted.
A shard knows only committed ids, so an image never has an id that the log has not. A new owner reads images and then
only the rest of the log (foqs/shard/writer/seen_loading.py).
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
"""The fewest ids of a table for an image. Fewer are read from the log as fast."""
IMAGE_STEPS = 4
"""A growing table gets a new image after each such fraction of its capacity. So a new owner reads at most that part
from the log, and images have about 13 bytes for each id in all.
"""
IMAGE_PAUSE_MS = 25
"""The pause between two parts of images, which limits them to 4 MiB a second for a shard's database."""
IMAGE_PARTS_GONE = 16
"""Parts of an image that one transaction deletes."""


class Images:
    """Knows which images are stored, makes missing ones, and deletes unneeded ones."""

    def __init__(self, windows: Mapping[int, SeenWindow], loading: Mapping[int, object], found: Sequence[StoredImage]):
        """`windows` and `loading` are those of `Dedup`; `found` are the images that a new owner finds."""
        self.making: ImageMaker | None = None
        self.gone: dict[ImageKey, StoredImage] = {}
        """Images to be deleted, with their remaining parts."""
        self.unused: dict[int, list[StoredImage]] = {}
        """The stored images of the namespaces whose log is still to be read."""
        self.stored: dict[int, dict[int, StoredImage]] = {}
        """The images of the tables in memory, by namespace and the number of the table's first id."""
        self._windows = windows
        self._due_ms = 0
        for image in found:
            if image.is_whole and image.key.namespace in loading:
                self.unused.setdefault(image.key.namespace, []).append(image)
            else:
                self._drop(image)

    # ---- a new owner ----

    def next_of(self, window: SeenWindow) -> StoredImage | None:
        """Return the next image to read, if one has ids that the window does not know yet."""
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
        """Refuse an image that is broken, or not of this log."""
        self._take_out(image)
        self._drop(image)

    def loaded(self, namespace: int) -> None:
        """Drop unused images, because the log is read."""
        for image in self.unused.pop(namespace, ()):
            self._drop(image)

    def _take_out(self, image: StoredImage) -> None:
        self.unused[image.key.namespace].remove(image)

    def _drop(self, image: StoredImage) -> None:
        self.gone[image.key] = image

    # ---- work to do ----

    def check(self, window: SeenWindow) -> None:
        """Find the work for a window whose log is read."""
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
            return False  # The order of its ids is lost.
        if ImageKey(window.namespace, table.first, table.whole_count) in self.gone:
            return False  # Its remaining parts are deleted first.
        grows = table is window.tables[-1] and table.room > 0
        return not grows or new_count >= max(IMAGE_IDS_MIN, table.capacity // IMAGE_STEPS)

    def forget(self, namespace: int) -> None:
        """Forget the images of a namespace that no longer has a window."""
        for image in self.stored.pop(namespace, {}).values():
            self._drop(image)

    def is_due(self, now: Now) -> bool:
        return (self.making is not None or bool(self.gone)) and now.steady_ms >= self._due_ms

    # ---- the parts of a transaction ----

    def begin(self, transaction: Transaction, now: Now) -> list[Imaging]:
        """Write one part of the image being made, or delete some parts of an old one, after a pause."""
        if not self.is_due(now):
            return []
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
        """Stop making an image whose table is no longer in use."""
        maker = self.making
        if maker is not None:
            window = self._windows.get(maker.key.namespace)
            if window is None or maker.table not in window.tables:
                self.making = None
                # The head comes last, so it was not written.
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
    """A part of an image that one transaction writes, or some parts that it deletes."""

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
        """Do nothing: the part is written or deleted again."""

    def lost(self, unknown: FoqsError, undone: FoqsError) -> None:
        """Do nothing: the next owner finds the stored parts."""
