"""What a broker has from its first start on: the topics of ``create_topics`` and the users of ``users``.

Each is made where it is missing, so the settings may stay as they are over restarts, and do not undo what was changed since.
"""

from broker.config import BrokerConfig
from broker.errors import ConfigError, Refusal
from broker.log import get_logger
from broker.runtime.entropy import Entropy
from broker.security.credentials import Credentials
from broker.storage.log_manager import LogManager

log = get_logger("server")


def make(config: BrokerConfig, logs: LogManager, credentials: Credentials, entropy: Entropy) -> None:
    """On the thread that starts the server, before there are clients. Raises ConfigError, StorageError."""
    for topic in config.create_topics:
        name, _, partitions = topic.partition(":")
        if logs.topic(name) is None:
            try:
                logs.create_topic(name, int(partitions) if partitions else None)
            except Refusal as error:
                raise ConfigError(f"Correct create_topics: {error.message}") from error
    there = set(credentials.users())
    for user in config.users:
        name, _, password = user.partition(":")
        if name not in there:
            credentials.set_password(name, password, entropy)
            there.add(name)
            log.info("user_added", user=ascii(name[:100]))
