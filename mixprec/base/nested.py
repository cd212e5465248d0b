"""Values in nested lists, tuples and dicts, as models take and return them."""

import copy


def mapped(value, function):
    """Returns nested lists, tuples and dicts with a function applied to each other object in them."""
    if isinstance(value, dict):
        result = copy.copy(value)  # of its class, such as OrderedDict
        result.update([(key, mapped(each, function)) for key, each in value.items()])
        return result
    if type(value) in (tuple, list):
        return type(value)([mapped(each, function) for each in value])
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make([mapped(each, function) for each in value])
    return function(value)
