from tests.pulsar.subscriptions.conftest import stage as stage
from tests.storage.conftest import storage as storage
