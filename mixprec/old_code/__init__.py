"""Restores names that programs of 2017 to 2020 use, and NumPy 2, Python 3.10 and setuptools 82 have removed.

Importing this package restores them for the whole process; it has no other content. With ``MIXPREC_OLD_CODE=1`` in the
environment :mod:`mixprec.startup` imports it in every interpreter, so that old libraries can be imported unmodified.
``numpy_names`` and ``python_names`` restore attributes; ``missing_modules`` provides modules such as ``nms_gpu_post``.
The documentation is docs/own-code.md.

Example:
    >>> import mixprec.old_code
    >>> import numpy as np
    >>> np.zeros(2, np.float).dtype
    dtype('float64')
"""

from mixprec.old_code import missing_modules, numpy_names, python_names

numpy_names.put_back()
python_names.put_back()
missing_modules.register()
