"""A consumer of messages that are not kept.

Nothing waits for it: what its connection cannot take is dropped. So it is not given slices, which would cost it messages
between two of them, but as much as it has permits for, as long as no more than ``_UNSENT_MAX`` bytes of that are in the broker.

Tests: tests/pulsar/nonpersistent/test_subscription.py.
"""

from functools import partial

import attrs

from broker.pulsar.subscriptions.consumer import ConnectedConsumer

# Bytes that were given to the connection and have not left. From the second on nothing more is given to it; the first is when
# the processor is asked how many have left.
_ASK_BYTES = 128 * 1024
_UNSENT_MAX = 2 * 1024 * 1024


@attrs.define(eq=False)
class PassingConsumer(ConnectedConsumer):
    _gone: int = 0  # bytes that have left, as far as is known; changed on the processor
    _asked: bool = False

    def has_room(self) -> bool:
        """Whether others on the connection leave it any: each may be given something before it finds out by itself. If not, it
        is paused. The subscription's lock is held."""
        if self.connection.connection.outgoing_bytes < _UNSENT_MAX:
            return True
        ConnectedConsumer.pause(self)
        return False

    def pause(self) -> None:
        """After what would have been a slice, each time. The subscription's lock is held."""
        connection = self.connection.connection
        unsent = self.bytes_out - self._gone
        # What others on the connection have been sent counts, too.
        if unsent >= _UNSENT_MAX or connection.outgoing_bytes >= _UNSENT_MAX:
            ConnectedConsumer.pause(self)
        elif unsent >= _ASK_BYTES and not self._asked:
            self._asked = True
            self.connection.outbox.call(connection, partial(self._look, self.bytes_out))

    def _look(self, given: int) -> None:
        """On the processor: of the first ``given`` bytes, what is not in the connection has left."""
        self._asked = False
        self._gone = max(self._gone, given - self.connection.connection.outgoing_bytes)

    def go_on(self) -> None:
        """The connection has sent what it had."""
        self._gone = max(self._gone, self.bytes_out - self.connection.connection.outgoing_bytes)
        ConnectedConsumer.go_on(self)
