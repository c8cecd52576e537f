"""Ends the use of a topic: its clients are told to look it up again, and its subscriptions leave their states to be loaded again,
or are deleted with it.

All of it happens under the topic's lock, and the topic is marked as closed at the end: nobody can join it meanwhile, and nobody gets
a new ``Topic`` from the registry before all states have been left. Any thread that may block for some milliseconds: a topic may
have thousands of subscriptions.

Tests: tests/pulsar/admin/test_topics.py.
"""

from broker.pulsar.topics.topic import Topic


def unload(topic: Topic) -> None:
    """The topic stays: whoever asks for it next loads it again."""
    _end(topic, deleted=False)


def discard(topic: Topic) -> None:
    """The topic is about to be deleted, and its subscriptions are gone."""
    _end(topic, deleted=True)


def _end(topic: Topic, *, deleted: bool) -> None:
    with topic.lock:
        if topic.closed:
            return
        for producer in topic.producers:
            producer.close()
        for subscription in list(topic.subscriptions.values()):
            if deleted:
                subscription.deleted()
            else:
                subscription.close()
        topic.closed = True
