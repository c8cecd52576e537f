import inspect

from broker.config.setting import InvalidSetting
from broker.errors import Refusal, RequestError, StorageError
from broker.pulsar import refusals
from broker.pulsar.refusals import code_of
from broker.storage import refusals as storage
from protocol.pulsar.pulsar_pb2 import ServerError


def test_every_refusal_has_its_own_code() -> None:
    kinds = [
        kind
        for module in (refusals, storage)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Refusal) and kind is not Refusal and kind is not storage.KeylessRecords
    ]
    assert len(kinds) > 20
    without = [kind.__name__ for kind in [*kinds, InvalidSetting] if code_of(kind("no")) == ServerError.UnknownError]
    assert [] == without


def test_clients_retry_after_storage_error() -> None:
    assert ServerError.PersistenceError == code_of(StorageError("disk full"))


def test_subclass_inherits_code_unless_it_has_one() -> None:
    assert ServerError.MetadataError == code_of(storage.KeylessRecords([1]))
    assert 22 == code_of(RequestError(22))
    assert ServerError.UnknownError == code_of(Refusal("something else"))
