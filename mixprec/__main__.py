"""``python -m mixprec`` is the command ``mixprec``, see :mod:`mixprec.app.commands.main`."""

from mixprec.app.commands import main

if __name__ == "__main__":
    main.console()
