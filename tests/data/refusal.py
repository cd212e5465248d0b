"""The message of an error of data, which is one line."""

import pytest

from mixprec.data.data_error import DataError


def refused(function, *arguments, **options):
    """Returns the message with which a call is refused."""
    with pytest.raises(DataError) as caught:
        function(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message
