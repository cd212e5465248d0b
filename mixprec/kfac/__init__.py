"""K-FAC: a preconditioner that multiplies gradients by an approximate inverse of the Fisher matrix.

In the order in which to read: ``preconditioner`` (:class:`~mixprec.kfac.preconditioner.KFAC`), ``refreshes`` (which
steps update what), ``collector`` and ``layers`` (second moments of each layer), ``multiplication`` (of gradients),
``sharing`` and ``triangles`` (several processes), ``saved_layers`` (snapshots), ``device_numbers``, ``layer_report``.
"""
