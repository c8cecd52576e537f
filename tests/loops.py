"""A test with very many cases runs them in a loop: as cases of pytest's, each costs milliseconds and a line of every list."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

Test = Callable[..., None]


def loop_over(
    names: str | tuple[str, ...], values: Iterable[Any] | Mapping[str, Iterable[Any]]
) -> Callable[[Test], Test]:
    """As ``pytest.mark.parametrize``, but a single case calls the test with all values in turn.

    A mapping makes a case of each of its entries: its key is the name of the case, its value what that case loops over.

    The first turn that fails ends its case, and a note of the error names the turn's values. Fixtures are set up once for all
    turns of a case: a turn must not depend on what another has left.
    """
    keys = [names] if isinstance(names, str) else list(names)
    cases = dict(values) if isinstance(values, Mapping) else {"": values}
    turns = {
        case: [(value,) if isinstance(names, str) else tuple(value) for value in loop] for case, loop in cases.items()
    }
    assert all(turns.values()), "a loop without a turn tests nothing"

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            case = fixtures.pop("case") if isinstance(values, Mapping) else ""
            for turn in turns[case]:
                named = dict(zip(keys, turn, strict=True))
                try:
                    test(*args, **fixtures, **named)
                except BaseException as error:
                    error.add_note("with " + ", ".join(f"{key}={value!r:.200}" for key, value in named.items()))
                    raise

        parameters = dict(inspect.signature(test).parameters)
        for key in keys:
            del parameters[key]
        if isinstance(values, Mapping):
            parameters["case"] = inspect.Parameter("case", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
        return pytest.mark.parametrize("case", list(turns))(run) if isinstance(values, Mapping) else run

    return decorate
