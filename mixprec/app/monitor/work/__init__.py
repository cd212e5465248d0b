"""Work of the monitor in processes of its own: evaluation, images, schedules, and the inside of a network.

``python -m mixprec.app.monitor.work TASK`` reads one JSON object and prints another one; the tasks are in
:mod:`mixprec.app.monitor.work.tasks`. The pages of the monitor import nothing of this.
"""
