"""Pages that show in a browser what training does: ``mixprec monitor results``.

The server reads results folders, and imports neither Chainer nor NumPy. In the order in which to read: ``log``,
``run_folder`` and ``runs`` (the files), ``charts``, ``server_state``, ``pages`` (a file for each page); ``access`` and
``access_token`` (who may look), ``connections`` (how long a request may take to arrive); ``jobs``; ``work``, processes
that load a network or decode images, which ``task_runner`` starts.
"""
