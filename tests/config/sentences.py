"""What every refusal of a setting looks like."""

from broker.errors import ConfigError


def sentence(error: ConfigError) -> str:
    """The message of an error, which is one sentence."""
    text = str(error)
    assert text.endswith("."), text
    assert "\n" not in text
    return text
