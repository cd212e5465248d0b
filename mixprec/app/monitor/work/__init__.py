"""Work of the monitor in separate processes: evaluation, images, schedules, and the inside of a network.

``python -m mixprec.app.monitor.work TASK`` reads one JSON object and prints another; the monitor's pages import nothing
of this. Reading order. ``tasks`` lists the tasks, ``fields`` checks requests, ``serving`` is the protocol; ``links``
and ``opened`` open the files of a request, ``uploaded_image`` its upload. Tasks: ``evaluate_task``, ``images_task``,
``data_task``, ``augment_task`` (``thumbnails``), ``inside_task`` (``seen_layers``, ``grids``), ``schedule_task``.
"""
