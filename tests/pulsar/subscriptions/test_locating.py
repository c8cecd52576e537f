"""Whether a connection is alive: one PING, an answer or none, and everybody who has asked is told once."""

from typing import Any

import pytest

from broker.network.service import Request
from broker.pulsar.subscriptions.locating import Liveness
from protocol.pulsar.frames import command_type
from protocol.pulsar.pulsar_pb2 import BaseCommand
from tests.pulsar.subscriptions.stage import Client, Stage


class Probed:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.client: Client = stage.client()
        self.closed: list[Request] = []
        self.client.outbox.close = self.closed.append  # type: ignore[attr-defined]
        self.liveness = Liveness(stage.clock, stage.timer)
        self.answers: list[bool] = []

    def probe(self) -> None:
        self.liveness.probe(self.client.state, self.answers.append)

    def pings(self) -> int:
        return [command_type(frame) for frame in self.client.link.frames].count(BaseCommand.Type.PING)


@pytest.fixture
def probed(stage: Stage) -> Probed:
    return Probed(stage)


def test_an_answer_is_for_all_who_have_asked(probed: Probed) -> None:
    probed.probe()
    probed.probe()
    assert ([], 1) == (probed.answers, probed.pings())
    probed.liveness.heard(probed.client.state)
    probed.liveness.heard(probed.client.state)
    probed.stage.wait(10_000)
    assert ([True, True], []) == (probed.answers, probed.closed)
    probed.probe()
    assert 2 == probed.pings()


def test_silence_closes_the_connection(probed: Probed) -> None:
    probed.probe()
    probed.stage.wait(4_900)
    assert [] == probed.answers
    probed.stage.wait(200)
    assert [False] == probed.answers
    (request,) = probed.closed
    assert probed.client.link is request.connection


def test_a_connection_that_closes_is_not_alive(probed: Probed) -> None:
    probed.probe()
    probed.liveness.lost(probed.client.state)
    probed.stage.wait(10_000)
    assert ([False], []) == (probed.answers, probed.closed)


def test_a_closed_connection_is_not_asked(probed: Probed) -> None:
    probed.client.disconnect()
    probed.probe()
    answers: Any = probed.answers
    assert ([False], 0) == (answers, probed.pings())
