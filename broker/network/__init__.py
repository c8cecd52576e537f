"""The reactor: Kafka's SocketServer in Python. See docs/ARCHITECTURE.md; ``service.py`` is the plug for protocols."""
