"""A test with very many cases runs them in a loop: as cases of pytest's, each costs milliseconds and a line of every list."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def loop_over(
    names: str | tuple[str, ...], values: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As ``pytest.mark.parametrize``, but one case of pytest's calls the test with all values in turn.

    The first turn that fails ends the test, and a note of its error names the turn's values. Fixtures are set up once for all
    turns: a turn must not find what another has left.
    """
    keys = [names] if isinstance(names, str) else list(names)
    turns = [(value,) if isinstance(names, str) else tuple(value) for value in values]
    assert turns, "a loop without a turn tests nothing"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            for turn in turns:
                named = dict(zip(keys, turn, strict=True))
                try:
                    test(*args, **fixtures, **named)
                except BaseException as error:
                    error.add_note("with " + ", ".join(f"{key}={value!r:.200}" for key, value in named.items()))
                    raise

        kept = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate
