"""Passwords for commands: from a file, from the environment, or typed without an echo. Never an argument, which `ps` shows.

Tests: tests/cli/test_certs.py.
"""

import os
import sys

import click

from broker.errors import ConfigError
from broker.runtime.text_file import read_text

# A password file that is larger is a mistake, such as a log or a device.
_FILE_MAX = 64 * 1024


def read_password(what: str, file: str | None, variable: str, *, again: bool = False, hint: str | None = None) -> str:
    """The password for ``what``: the first line of ``file`` (``-`` is standard input), the environment variable, or the answer
    of the user, who types it twice if ``again``. Raises ConfigError where there is none; ``hint``: how else to give it."""
    if file is not None:
        password = read_secret_file(file).partition("\n")[0].removesuffix("\r")
        if not password:
            raise ConfigError(f"Write the password for {what} into the first line of {file}: it is empty.")
        return password
    if given := os.environ.get(variable):
        return given
    if not sys.stdin.isatty():
        raise ConfigError(f"Give the password for {what} {hint or f'with --password-file FILE, or in {variable}'}.")
    return str(click.prompt(f"Password for {what}", hide_input=True, confirmation_prompt=again, err=True))


def read_secret_file(path: str) -> str:
    """The text of ``path``. Raises ConfigError, which does not show it."""
    try:
        return read_text("/dev/stdin" if path == "-" else path, _FILE_MAX)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"{error}.") from None
