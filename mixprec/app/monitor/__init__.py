"""A page that shows in a browser what training does: ``python -m mixprec.app.monitor results``.

The server reads results folders, and imports neither Chainer nor NumPy: :mod:`mixprec.app.monitor.log`,
:mod:`mixprec.app.monitor.run_folder` and :mod:`mixprec.app.monitor.runs` know the files,
:mod:`mixprec.app.monitor.charts` draws, :mod:`mixprec.app.monitor.access` decides who may look,
:mod:`mixprec.app.monitor.connections` how long a request may take to come. What needs a network or decodes images is
done by processes of their own, :mod:`mixprec.app.monitor.work`, which :mod:`mixprec.app.monitor.task_runner` starts.
``mixprec.app.monitor.pages`` has a file for each page.
"""
