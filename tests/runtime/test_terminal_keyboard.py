"""Keys from a terminal: a pseudo terminal here."""

import os
import pty
import sys
import termios

import pytest

from broker.runtime.terminal import Keyboard


def test_keys_come_without_enter_and_terminal_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        before = termios.tcgetattr(theirs)
        with Keyboard() as keyboard:
            assert not termios.tcgetattr(theirs)[3] & termios.ICANON
            assert "" == keyboard.wait(0.0)
            os.write(ours, b"q")
            assert "q" == keyboard.wait(30.0)
        assert before == termios.tcgetattr(theirs)
    os.close(ours)


def test_without_a_terminal_there_are_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with Keyboard() as keyboard:
            assert "" == keyboard.wait(0.0)
