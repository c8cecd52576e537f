"""Runs: Produce requests that a client has sent without waiting for answers, handled together.

A session that finds more than one request in what was received asks ``RunFinder`` whether the first ones are a run, which
``protocol.kafka.messages.produce_runs`` decides. If they are, the processor gets all of them as one frame, and they become one
``RunRequest``: one write for each log, one fsync with ``acks=all``, one answer with as many responses (``runs.py``).
The order of what is stored and answered is that in which the requests have come.

On the connection's processor. Only requests that the processor would handle itself may be in a run.

Tests: tests/kafka/producing/test_runs.py, tests/kafka/producing/test_run_finder.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

from broker.kafka.api import Api, KafkaRequest
from broker.kafka.context import KafkaContext
from protocol.kafka.messages.produce_runs import Answers, Followed, Layout, Template, follow, template_of

# A run of this size takes about half a millisecond.
_RUN_MAX = 128
RUN_BYTES_MAX = 512 * 1024
# Of one connection: a producer to more partitions than this has its requests handled one by one.
_TEMPLATES_MAX = 64
# After so many requests from which nothing was learned, with no run among them, this many are not looked at.
_FAILURES_MAX = 4
_SKIPPED = 64
# The same for a client that has made its templates be forgotten, because there were too many.
_SKIPPED_BY_MANY = 1024


class RunRequest(KafkaRequest):
    """The requests of a run. ``api_version`` and ``correlation_id`` are those of the last one. ``answers`` gives what makes the
    responses to those of a template that have succeeded, out of correlation id, base offset and log start offset."""

    __slots__ = ("answers", "count", "run")

    count: int
    run: Sequence[Followed]
    answers: Callable[[Template], Callable[[int, int, int], bytes]]


class RunFinder:
    """That of one connection."""

    __slots__ = ("_answers", "_bytes_max", "_context", "_failures", "_layout", "_skip", "_templates", "run", "size")

    def __init__(self, context: KafkaContext) -> None:
        self._context = context
        # The processor takes a run for one frame, which must not be larger than a frame may be.
        self._bytes_max = min(RUN_BYTES_MAX, context.config.socket_request_max_bytes)
        self._templates: dict[bytes, Template] = {}
        self._answers: dict[Template, Callable[[int, int, int], bytes]] = {}
        self._layout: Layout | None = None  # of the templates that were used last
        self._skip = 0
        self._failures = 0
        self.run: Sequence[Followed] = ()
        self.size = 0  # of the frames that are `run`

    def find(self, data: memoryview, first: int) -> int:
        """The size of the run at the beginning of ``data``, or of its first frame (``first``), if that begins none."""
        self.size = 0
        if self._skip:
            self._skip -= 1
            return first
        if first > self._bytes_max:
            return first
        context = self._context
        if context.metering is not None or context.traces is not None:
            return first  # these look at single requests
        if context.appends_slow_until and context.clock.monotonic() < context.appends_slow_until:
            return first
        run: Sequence[Followed] = ()
        if self._layout is not None:
            run, size = follow(self._templates, self._layout, data, _RUN_MAX, self._bytes_max)
        if not run:
            layout = self._learn(data[:first])
            if layout is None:
                return first
            run, size = follow(self._templates, layout, data, _RUN_MAX, self._bytes_max)
        if len(run) < 2:
            return first
        if not all(map(self._is_handled_here, {one.template for one in run})):
            self._skip = len(run) - 1  # not to follow the same requests again for each of them
            return first
        self._failures = 0
        self.run, self.size = run, size
        return size

    def request(self, api: Api) -> RunRequest:
        """That of the run that was found."""
        request = RunRequest()
        request.run, self.run = self.run, ()
        self.size = 0
        last = request.run[-1]
        request.api = api
        request.kind = api.label
        request.api_version = last.template.version
        request.correlation_id = last.correlation_id
        request.client_id = None
        request.body_offset = 0
        request.answers = self._answers_of
        request.count = len(request.run)
        return request

    def _answers_of(self, template: Template) -> Callable[[int, int, int], bytes]:
        answers = self._answers.get(template)
        if answers is None:
            answers = self._answers[template] = Answers(template).one
        return answers

    def _learn(self, frame: memoryview) -> Layout | None:
        template = template_of(frame)
        if template is not None:
            known = self._templates.get(template.middle)
            if known is None:
                if len(self._templates) == _TEMPLATES_MAX:
                    self._templates.clear()
                    self._answers.clear()
                    self._skip = _SKIPPED_BY_MANY
                self._templates[template.middle] = template
            else:
                self._failures += 1  # the client goes from one layout to another and back
            self._layout = template.layout
        else:
            self._failures += 1
        if self._failures >= _FAILURES_MAX:
            self._skip = _SKIPPED
            self._failures = 0
        return None if template is None else template.layout

    def _is_handled_here(self, template: Template) -> bool:
        logs = self._context.logs
        key: tuple[Any, int] = (template.topic, template.partition)
        entry = (logs.partitions if isinstance(template.topic, str) else logs.partitions_by_id).get(key)
        # Otherwise the batches have to be decompressed.
        return entry is None or not (entry.config.compact or entry.config.compression_codec is not None)
