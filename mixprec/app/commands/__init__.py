"""The commands of the program ``mixprec``, a module each; :mod:`~mixprec.app.commands.main` chooses one.

``command_process`` is how a command begins and ends as a process, ``command_line`` has their argument parser and the
printing of their errors.
"""
