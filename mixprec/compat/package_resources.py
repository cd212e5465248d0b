"""The part of ``pkg_resources`` that ``chainer.testing`` and old libraries use at run time.

Versions, requirements, entry points, namespaces, and files of a package in a folder. :mod:`mixprec.old_code` provides
it to all programs if setuptools does not have it.
"""

import importlib
import pathlib
import pkgutil
import sys
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import parse as parse_version

_namespaces = set()


class ResolutionError(Exception):
    """A requirement is not met."""


class DistributionNotFound(ResolutionError):
    """A distribution is not installed."""


class VersionConflict(ResolutionError):
    """A distribution is installed in another version."""


class Distribution:
    """An installed distribution.

    Attributes:
        project_name: its name.
        version: its version, a string.
        location: its folder.
    """

    def __init__(self, found):
        self.project_name, self.version = found.metadata["Name"], found.version
        self.key = self.project_name.lower()
        self.location = str(found.locate_file(""))

    @property
    def parsed_version(self):
        return parse_version(self.version)


def get_distribution(requirement):
    """Returns the :class:`Distribution` of a requirement, e.g. ``'numpy>=1.10'``; raises :class:`ResolutionError`."""
    wanted = Requirement(str(requirement))
    try:
        found = Distribution(metadata.distribution(wanted.name))
    except metadata.PackageNotFoundError:
        raise DistributionNotFound(f"{requirement}: {wanted.name} is not installed") from None
    if not wanted.specifier.contains(found.version, prereleases=True):
        raise VersionConflict(f"{requirement}: {wanted.name} {found.version} is installed")
    return found


def require(*requirements):
    """Returns the distributions of requirements, a list; raises :class:`ResolutionError` for one that is not met."""
    return [get_distribution(each) for each in requirements]


class WorkingSet:
    """The installed distributions."""

    require = staticmethod(require)

    def __iter__(self):
        return map(Distribution, metadata.distributions())


working_set = WorkingSet()


def iter_entry_points(group, name=None):
    """Yields the entry points of a group, all of them or only those with a given name."""
    yield from metadata.entry_points(group=group, **({} if name is None else {"name": name}))


def declare_namespace(packageName):
    """Makes a package, such as protobuf's ``google``, span several folders; called by its ``__init__``."""
    package = sys.modules[packageName]
    package.__path__ = pkgutil.extend_path(package.__path__, packageName)
    _namespaces.add(packageName)


def fixup_namespace_packages(path_item, parent=None):
    """Looks for more folders of such packages when ``sys.path`` has changed; pytest calls it."""
    for name in _namespaces & sys.modules.keys():
        declare_namespace(name)


def resource_filename(package_or_requirement, resource_name):
    """Returns the path of a file in a package, or beside a module."""
    module = importlib.import_module(package_or_requirement)
    return str(pathlib.Path(module.__file__).parent / resource_name)


def resource_exists(package_or_requirement, resource_name):
    """Returns whether a package has such a file or folder."""
    return pathlib.Path(resource_filename(package_or_requirement, resource_name)).exists()


def resource_listdir(package_or_requirement, resource_name):
    """Returns the names in a folder of a package, a list."""
    return [path.name for path in pathlib.Path(resource_filename(package_or_requirement, resource_name)).iterdir()]


def resource_stream(package_or_requirement, resource_name):
    """Opens a file of a package for reading bytes."""
    return open(resource_filename(package_or_requirement, resource_name), "rb")


def resource_string(package_or_requirement, resource_name):
    """Returns the bytes of a file of a package."""
    return pathlib.Path(resource_filename(package_or_requirement, resource_name)).read_bytes()
