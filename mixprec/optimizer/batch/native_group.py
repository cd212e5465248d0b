"""A group that the native library updates, in one call for all of its parameters.

A table of the library has the arrays of parameters, masters and states, which it holds until a change of the plan, and
in a step the gradients. It goes over them twice: ``update_check`` looks for overflows before and after hooks,
``update_run`` does the rest. What is computed on the way stays in the processor's cache.
"""

import numpy as np

from mixprec.backends.memory import flat
from mixprec.dtypes import BFLOAT16
from mixprec.native.native_library import is_stored, library, raw
from mixprec.optimizer.batch.group import Group
from mixprec.optimizer.batch.native_names import name_of

_FINITE, _FINITE_AFTER_HOOKS = 1, 2
_MOST_HOOKS = 8


def is_native(entry):
    """Whether the library can update a parameter."""
    if library() is None or len(entry.hooks) > _MOST_HOOKS:
        return False
    formulas = [hook.formula for hook in entry.hooks] + [entry.formula] * (entry.formula is not None)
    _, *wide = arrays = _arrays(entry)
    return (
        all(map(name_of, formulas))
        and all(array.dtype == np.float32 for array in wide)
        and is_stored(entry.param.dtype)
        and all(array.flags.aligned and array.flags.writeable for array in arrays if array is not None)
    )


class NativeGroup(Group):
    """See :class:`~mixprec.optimizer.batch.group.Group`."""

    def __init__(self, members, count):
        super().__init__(members, count)
        entries = [entry for _, entry in members]
        rule = name_of(self._formula) if self.updates else None
        hooks = tuple(name_of(hook.formula) for hook in self._hooks)
        self._table = library().update_table(rule, hooks, [_arrays(entry) for entry in entries])
        self._bfloats = [i for i, entry in enumerate(entries) if entry.param.dtype == BFLOAT16]
        self._found = self._hooked_by = None

    def load(self, gradients, inverses):
        """See :class:`~mixprec.optimizer.batch.group.Group`."""
        given = self._pick(gradients)
        if not isinstance(inverses, float):
            inverses = list(self._pick(inverses))
        self._found = None
        try:
            gradients = list(given)
            for i in self._bfloats:
                gradients[i] = raw(gradients[i])
            library().update_load(self._table, gradients, inverses)
        except ValueError:  # one is not contiguous, or in another dtype
            library().update_load(self._table, [_stored(gradient) for gradient in given], inverses)

    def follow(self):
        """See :class:`~mixprec.optimizer.batch.group.Group`."""
        self._hooked_by = self._hook_numbers()
        self._found = library().update_check(self._table, self._hooked_by)

    def is_finite(self):
        """See :class:`~mixprec.optimizer.batch.group.Group`."""
        return bool(self._found & _FINITE)

    def is_finite_after_hooks(self):
        """See :class:`~mixprec.optimizer.batch.group.Group`."""
        if not self._hooks:
            return True
        if self._found is None:  # what was loaded after follow()
            self.follow()
        return bool(self._found & _FINITE_AFTER_HOOKS)

    def _update(self):
        library().update_run(self._table, self._hooked_by, self._numbers)

    def forget(self):
        """See :class:`~mixprec.optimizer.batch.group.Group`."""
        library().update_load(self._table, None, None)


def _arrays(entry):
    """Returns what the table takes of an entry, all of it flat; the parameter as the library takes it."""
    states = entry.formula.states if entry.formula is not None else ()
    rounded = flat(entry.param.array) if entry.is_rounded else None
    if rounded is not None and rounded.dtype == BFLOAT16:
        rounded = rounded.view(np.uint16)
    return (rounded, flat(entry.master.array), *(flat(entry.rule.state[name]) for name in states))


def _stored(gradient):
    """Returns a gradient as the library takes it."""
    with np.errstate(over="ignore"):
        return raw(gradient if is_stored(gradient.dtype) else gradient.astype(np.float32))
