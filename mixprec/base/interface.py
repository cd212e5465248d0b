"""A base of classes that say what their subclasses do: all of their methods are abstract."""

import abc
import inspect


class Interface(abc.ABC):  # noqa: B024 (its subclasses have them)
    """Each method of a class right below this one is abstract."""

    def __init_subclass__(cls):
        super().__init_subclass__()
        if Interface in cls.__bases__:
            for method in vars(cls).values():
                if inspect.isfunction(method):
                    method.__isabstractmethod__ = True
