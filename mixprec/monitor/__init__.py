"""A page that shows in a browser what training does: ``python -m mixprec.monitor results``.

The server reads results folders, and imports neither Chainer nor NumPy: :mod:`mixprec.monitor.log`,
:mod:`mixprec.monitor.run_folder` and :mod:`mixprec.monitor.runs` know the files, :mod:`mixprec.monitor.charts` draws,
:mod:`mixprec.monitor.access` decides who may look, :mod:`mixprec.monitor.connections` how long a request may take to
come. What needs a network or decodes images is done by processes of their own, :mod:`mixprec.monitor.work`, which
:mod:`mixprec.monitor.task_runner` starts. ``mixprec.monitor.pages`` has a file for each page.
"""
