"""A base class for interfaces: all methods of its direct subclasses are abstract."""

import abc
import inspect


class Interface(abc.ABC):  # noqa: B024 (its subclasses have them)
    """Makes each method of a direct subclass abstract."""

    def __init_subclass__(cls):
        super().__init_subclass__()
        if Interface in cls.__bases__:
            for method in vars(cls).values():
                if inspect.isfunction(method):
                    method.__isabstractmethod__ = True
