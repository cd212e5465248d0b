"""A server of pages that show training in a browser: ``mixprec monitor results``.

The server reads results folders, and imports neither Chainer nor NumPy. Reading order. Files: ``log``, ``run_folder``,
``runs``; ``charts`` draws. ``server_state`` is what all pages share, and the folder ``pages`` has a file for each page.
Requests: ``access`` with ``access_token`` decides about access, ``connections`` limits their time, ``log_limit`` the
printed errors. Work that needs a network or decodes images runs in separate processes, the folder ``work``, which
``task_runner`` starts. ``jobs`` starts and stops training. The command is :mod:`mixprec.app.commands.monitor`.
"""
