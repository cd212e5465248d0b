"""Names that programs of 2017 to 2020 use, and that NumPy 2, Python 3.10 and setuptools 82 have dropped.

Importing this module puts them back, for the whole process; it has nothing else. With ``MIXPREC_OLD_CODE=1`` in the
environment :mod:`mixprec.startup` imports it in every interpreter, so that old libraries are imported unmodified.
docs/own-code.md is the user's page.

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
