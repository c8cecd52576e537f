"""The broker's settings: their definitions, their parsing, and errors that say how to correct a value.

``BrokerConfig`` holds every setting of a broker as a checked value; ``load`` makes it from TOML text and ``--set``
pairs. Pure: the caller reads the file.
"""

from broker.config.listener import Listener, parse_listener
from broker.config.load import load
from broker.config.setting import Setting, setting_infos
from broker.config.settings import BrokerConfig

__all__ = ["BrokerConfig", "Listener", "Setting", "load", "parse_listener", "setting_infos"]
