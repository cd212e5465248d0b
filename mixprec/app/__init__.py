"""The training application: everything that reads a config, and the commands.

Nothing outside of this folder reads a config. In the order in which to read: ``config`` (the YAML file), ``parts``
(network, optimizer, images and trainer that it describes), ``run`` (checks before a run, and the run itself),
``finished`` (work with a finished run), ``monitor`` (pages in a browser), ``commands`` (the shell commands).
"""
