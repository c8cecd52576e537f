"""Settings: what can be set, how it is read, and what is wrong with a value that cannot be used.

``BrokerConfig`` holds every setting of a broker as a checked value; ``load`` makes one from TOML text and ``--set`` pairs. Pure:
the caller reads the file.
"""

from broker.config.listener import Listener, parse_listener
from broker.config.load import load
from broker.config.setting import SettingInfo, setting_infos
from broker.config.settings import BrokerConfig

__all__ = ["BrokerConfig", "Listener", "SettingInfo", "load", "parse_listener", "setting_infos"]
