"""How mixprec was installed: the command that adds an extra to it, and the address of its pages.

A checkout has ``setup.cfg`` beside the package, and its pages in ``docs/``. A wheel has the pages inside the package,
in ``mixprec/docs``, which is a link in a checkout.
"""

import pathlib

_PACKAGE = pathlib.Path(__file__).resolve().parents[1]


def in_checkout():
    """Returns whether the package lies in a checkout of its repository."""
    return (_PACKAGE.parent / "setup.cfg").is_file()


def install_hint(extra):
    """Returns the command that installs an extra of ``setup.cfg``.

    Example:
        >>> from mixprec.base.installation import install_hint
        >>> install_hint("export")  # in a checkout; elsewhere: pip install "mixprec[export]"
        'pip install -e ".[export]"'
    """
    return f"pip install {_requirement(extra)}"


def cuda_hint():
    """Returns the command that installs what a GPU needs, with the extra for CUDA 12 behind it."""
    return f"{install_hint('cuda13')}  (CUDA 12: {_requirement('cuda12').removeprefix('-e ')})"


def page(name):
    """Returns the address of a page, such as ``"config.md"``: in the checkout, or the full path where it is installed.

    Example:
        >>> from mixprec.base.installation import page
        >>> page("config.md")  # in a checkout
        'docs/config.md'
    """
    return f"docs/{name}" if in_checkout() else str(_PACKAGE / "docs" / name)


def _requirement(extra):
    return f'-e ".[{extra}]"' if in_checkout() else f'"mixprec[{extra}]"'
