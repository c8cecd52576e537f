"""The content of a directory in memory, and how it is put back: for small directories that are put back often.

Nothing is fsynced. Whoever calls sees to it that nobody else uses the directory meanwhile. Only directories and plain files
count; others are left out of an image and are removed when one is put back. Raises OSError.
"""

import os
import shutil
import stat

import attrs


@attrs.frozen(eq=False)
class DirectoryImage:
    """``files``: mode and content of each, by its path relative to the directory; ``directories``: modes, parents first."""

    directories: dict[str, int] = attrs.Factory(dict)
    files: dict[str, tuple[int, bytes]] = attrs.Factory(dict)

    @classmethod
    def of(cls, path: str) -> "DirectoryImage":
        image = cls()
        _take(image, path, "")
        return image

    def put_back(self, path: str) -> None:
        """Make the directory, which exists, what it was. Files that have not changed are only read: to make a file takes ten
        times as long."""
        self._remove_others(path, "")
        for name, mode in self.directories.items():
            if not os.path.isdir(f"{path}/{name}"):
                os.mkdir(f"{path}/{name}", mode)
        for name, (mode, content) in self.files.items():
            _put(f"{path}/{name}", mode, content)

    def _remove_others(self, path: str, below: str) -> None:
        with os.scandir(f"{path}/{below}") as entries:
            found = list(entries)
        for entry in found:
            name = below + entry.name
            if entry.is_dir(follow_symlinks=False):
                if name in self.directories:
                    self._remove_others(path, f"{name}/")
                else:
                    shutil.rmtree(entry.path)
            elif name not in self.files or not entry.is_file(follow_symlinks=False):
                os.unlink(entry.path)


def _take(image: DirectoryImage, path: str, below: str) -> None:
    with os.scandir(f"{path}/{below}") as entries:
        found = list(entries)
    for entry in found:
        name = below + entry.name
        mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
        if entry.is_dir(follow_symlinks=False):
            image.directories[name] = mode
            _take(image, path, f"{name}/")
        elif entry.is_file(follow_symlinks=False):
            with open(entry.path, "rb", buffering=0) as file:
                image.files[name] = (mode, file.readall())


def _put(path: str, mode: int, content: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    with open(descriptor, "r+b", buffering=0) as file:
        found = file.readall()
        # By content: a file that was changed in place within a tick of the kernel's clock has its old time.
        if found[: len(content)] != content:
            file.seek(0)
            view = memoryview(content)
            while view:
                view = view[file.write(view) :]
        if len(found) > len(content):
            file.truncate(len(content))
