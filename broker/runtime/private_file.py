"""Files that only the user of this process may read, because they contain secrets. On systems without such rights they are
ordinary files.
"""

import contextlib
import os


def create_private(path: str) -> bool:
    """Make an empty file. False, and nothing has happened, if there is one or it cannot be made."""
    try:
        # Only a new file is opened: closing one would end the locks that this process has on it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        return False
    return True


def make_private(path: str) -> None:
    """Take the rights of other users to this file away, if that is possible."""
    with contextlib.suppress(OSError):
        os.chmod(path, 0o600)
