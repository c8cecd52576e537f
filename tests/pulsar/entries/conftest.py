"""The storage, as its own tests have it."""

from tests.storage.conftest import storage as storage
