"""The message of an error about a config, which is one line."""

import pytest

from mixprec.app.config import ConfigError, load


def refusal(path, overrides=(), **keywords):
    """Returns the message with which a config is refused."""
    with pytest.raises(ConfigError) as caught:
        load(path, overrides, **keywords)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) <= 1000
    return message
