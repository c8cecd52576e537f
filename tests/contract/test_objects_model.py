"""Object stores against a dict: any calls, one after the other. S3 is left to test_objects.py: a request takes too long."""

import tempfile
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.runtime.directory_objects import DirectoryObjects
from broker.runtime.objects import MemoryObjects, ObjectError, ObjectExists, ObjectMissing, ObjectStore

# None is the beginning of another.
KEYS = st.sampled_from(["a/b/c", "a/b/d", "a/e", "a-b/c", "f", "g/h/i/j"])
PREFIXES = st.sampled_from(["", "a", "a/b", "a/b/", "a-b", "g/h", "f", "none"])
DATA = st.binary(max_size=20)


class Model(RuleBasedStateMachine):
    open: Callable[[str], ObjectStore]

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, bytes] = {}

    @initialize()
    def start(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.store = type(self).open(self.directory.name)

    def teardown(self) -> None:
        self.directory.cleanup()

    @rule(key=KEYS, parts=st.lists(DATA, max_size=3))
    def put(self, key: str, parts: list[bytes]) -> None:
        self.store.put(key, iter(parts), sum(map(len, parts)))
        self.model[key] = b"".join(parts)

    @rule(key=KEYS, data=DATA)
    def create(self, key: str, data: bytes) -> None:
        if self.model.get(key, data) == data:
            self.store.put(key, [data], len(data), create=True)
            self.model[key] = data
        else:
            with pytest.raises(ObjectExists):
                self.store.put(key, [data], len(data), create=True)

    @rule(key=KEYS, data=DATA, more=st.integers(-3, 3).filter(bool), create=st.booleans())
    def put_another_size(self, key: str, data: bytes, more: int, create: bool) -> None:
        with pytest.raises(ValueError, match="bytes"):
            self.store.put(key, [data], len(data) + more, create=create)

    @rule(keys=st.lists(KEYS))
    def delete(self, keys: list[str]) -> None:
        self.store.delete(keys)
        for key in keys:
            self.model.pop(key, None)

    @rule(key=KEYS, offset=st.integers(0, 30), size=st.integers(0, 30))
    def get(self, key: str, offset: int, size: int) -> None:
        if size and key not in self.model:
            with pytest.raises(ObjectMissing):
                self.store.get(key, offset, size)
        elif size and offset + size > len(self.model[key]):
            with pytest.raises(ObjectError, match="it ends before"):
                self.store.get(key, offset, size)
        else:
            assert self.model.get(key, b"")[offset : offset + size] == self.store.get(key, offset, size)

    @rule(prefix=PREFIXES)
    def list_objects(self, prefix: str) -> None:
        start = prefix.rstrip("/") and prefix.rstrip("/") + "/"
        expected = {key: len(data) for key, data in self.model.items() if key.startswith(start)}
        listed = [*self.store.list(prefix)]
        assert expected == dict(listed)
        assert len(expected) == len(listed)

    @invariant()
    def sizes_agree(self) -> None:
        for key, data in self.model.items():
            assert len(data) == self.store.size(key)


class Memory(Model):
    open = staticmethod(lambda directory: MemoryObjects())


class Directory(Model):
    open = staticmethod(DirectoryObjects)

    @rule()
    def open_again(self) -> None:
        self.store = DirectoryObjects(self.directory.name)


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=30, stateful_step_count=30)
TestDirectory = Directory.TestCase
TestDirectory.settings = settings(max_examples=20, stateful_step_count=30)
