"""File systems of their own for servers: one whose power can be cut, and one that can be filled up.

A power cut is FS_IOC_SHUTDOWN of ext4 without a flush of its log (xfstests uses it the same way): what was not yet
written to the device is gone, as kill -9 never makes it, because the kernel keeps what a killed process wrote.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.faults import FaultError
from tests.support.waiting import PROGRAM_S_MAX

_IOC_SHUTDOWN = 0x8004587D
"""_IOR('X', 125, __u32), alike on all architectures with the generic ioctl layout."""
_NO_LOG_FLUSH = struct.pack("I", 2)
_UNMOUNT_S_MAX = 30.0
_UNMOUNT_RETRY_S = 0.02
_PROGRAMS = ("mkfs.ext4", "mount", "umount", "sync")
_SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
_LOOP_CONTROL = Path("/dev/loop-control")


def missing_for_mounts() -> list[str]:
    """What this machine lacks for the volumes below, each a thing to get; empty when nothing."""
    missing = [f"the program {name}" for name in _PROGRAMS if shutil.which(name, path=_SEARCH_PATH) is None]
    if os.geteuid() != 0:
        missing.append("root, to mount a file system (run it with sudo)")
    if not _LOOP_CONTROL.exists():
        missing.append(f"loop devices ({_LOOP_CONTROL}; in a container they must be passed in)")
    return missing


class Volume(ABC):
    """A mounted file system. As a context manager it is made and taken away again."""

    def __init__(self, size_mib: int) -> None:
        self.size_mib = size_mib
        self._home = Path(tempfile.mkdtemp(prefix="foqs-volume-"))
        self.path = self._home / "mounted"
        self.path.mkdir()
        self._is_mounted = False

    def __enter__(self) -> Self:
        try:
            self._make()
            self.mount()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.unmount()
        self._remove()

    def mount(self) -> None:
        self._mount()
        self._is_mounted = True

    def unmount(self) -> None:
        """Once nobody uses it any more; raises FaultError when somebody still does after 30 s."""
        deadline_s = time.monotonic() + _UNMOUNT_S_MAX
        while self._is_mounted:
            try:
                _run("umount", str(self.path))
            except FaultError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(_UNMOUNT_RETRY_S)
            else:
                self._is_mounted = False

    @abstractmethod
    def _make(self) -> None: ...

    @abstractmethod
    def _mount(self) -> None: ...

    def _remove(self) -> None:
        shutil.rmtree(self._home)


class PoweredVolume(Volume):
    """ext4 in a file. After `cut_power` nothing can be read or written until it is unmounted and mounted again."""

    def cut_power(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _IOC_SHUTDOWN, _NO_LOG_FLUSH)
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """All that was written so far survives."""
        _run("sync", "-f", str(self.path))

    def restore_power(self) -> None:
        """Once every process that used it is dead; the file system replays its log."""
        self.unmount()
        self._wait_until_it_is_gone()
        self.mount()

    def _wait_until_it_is_gone(self) -> None:
        """Where a mount namespace has a copy of the mount, the file system goes on, and would be mounted as it is."""
        deadline_s = time.monotonic() + _UNMOUNT_S_MAX
        while str(self._image) in _files_of_loop_devices():
            if time.monotonic() > deadline_s:
                raise FaultError(f"{self.path} is unmounted, and still mounted in another mount namespace")
            time.sleep(_UNMOUNT_RETRY_S)

    @property
    def _image(self) -> Path:
        return self._home / "image"

    def _make(self) -> None:
        with self._image.open("wb") as image:
            image.truncate(self.size_mib << 20)
        _run("mkfs.ext4", "-q", "-F", str(self._image))

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))


class SmallVolume(Volume):
    """A tmpfs, to be filled up."""

    _BALLAST = "ballast"

    def fill(self) -> None:
        """Take all the space there is."""
        with (self.path / self._BALLAST).open("ab", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(1 << 16))
            except OSError:
                return  # Full, which is what was asked for.

    def free(self) -> None:
        (self.path / self._BALLAST).unlink(missing_ok=True)

    def _make(self) -> None:
        return

    def _mount(self) -> None:
        _run("mount", "-t", "tmpfs", "-o", f"size={self.size_mib}m", "tmpfs", str(self.path))


def _files_of_loop_devices() -> set[str]:
    found = set()
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # It has just been given back.
            found.add(path.read_text().rstrip("\n"))
    return found


def _run(program: str, *arguments: str) -> None:
    found = shutil.which(program, path=_SEARCH_PATH)
    if found is None:
        raise FaultError(f"there is no program {program}")
    done = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False)
    if done.returncode != 0:
        raise FaultError(f"{program} {' '.join(arguments)}: {(done.stdout + done.stderr).strip()}")
