"""A base of classes that say what their subclasses do: all of their methods are abstract."""

import abc
import inspect


class Interface(abc.ABC):  # noqa: B024 (its subclasses have them)
    """Each method of a class right below this one is abstract, but those that it names with ``but``."""

    def __init_subclass__(cls, but=()):
        super().__init_subclass__()
        if Interface in cls.__bases__:
            for name, method in vars(cls).items():
                if inspect.isfunction(method) and name not in but:
                    method.__isabstractmethod__ = True
