"""The broker as a whole: puts the storage, the reactor and the services together, starts them, and stops them in order."""

from broker.server.broker_server import BrokerServer as BrokerServer
