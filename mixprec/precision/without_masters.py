"""Warns about 16-bit parameters that an optimizer updates without FP32 masters, after the first such update.

The smallest relative step of a float16 number is 5e-4, of a bfloat16 number 4e-3: smaller updates are lost, and the
model stops learning. That happens when a converted model, or a model of :mod:`mixprec.links`, is given to a plain
Chainer optimizer. Models of Chainer's own links in float16 are not checked.
"""

import functools
import weakref

import numpy as np

from mixprec.base.announcements import announce
from mixprec.base.dtypes import is_half
from mixprec.compat.registry import patch

# Attribute of a converted link: its mixprec.rewrite.convert.LinkState.
CONVERSION = "_mixprec_conversion"

_MESSAGE = (
    "%s updates %s of %s in %s, without float32 master weights, so that small steps are lost: use "
    "mixprec.MixedPrecisionOptimizer(optimizer).setup(model) in place of optimizer.setup(model)"
)


_looked = weakref.WeakKeyDictionary()  # optimizer -> weak reference to the model that it had when it was checked


def look_again():
    """Checks each optimizer after its next update; called when parameters of a model are given 16 bits."""
    _looked.clear()
    _watched.apply()  # again, if other code has replaced the method since


@patch("chainer.optimizer:GradientMethod.update", when="mixprec.links")
def _watched(original):
    """Without it a plain optimizer updates FP16 weights that have no masters, and small steps are lost in silence."""

    @functools.wraps(original)
    def update(self, lossfun=None, *args, **kwds):
        original(self, lossfun, *args, **kwds)
        target, looked = self.target, _looked.get(self)
        if looked is None or looked() is not target:
            _looked[self] = weakref.ref(target)
            _look(self, target)

    return update


_watched.apply()


def _look(optimizer, target):
    # The masters of a MixedPrecisionOptimizer, which are the target of the wrapped one, end here: all are FP32.
    if not any(map(_lacks_a_master, target.params(include_uninit=False))):
        return
    found = {}
    for path, link in target.namedlinks():
        if _is_ours(link):
            own = ((name, link.__dict__[name]) for name in sorted(link._params))
            found |= {f"{path.rstrip('/')}/{name}": param for name, param in own if _lacks_a_master(param)}
    if found:
        name, *others = found
        which = f"{name} and {len(others)} more parameters" if others else name
        dtypes = " and ".join(sorted({param.dtype.name for param in found.values()}))
        announce(_MESSAGE, type(optimizer).__name__, which, type(target).__name__, dtypes)


def _lacks_a_master(param):
    rule = param.update_rule
    if param.array is None or not is_half(param.dtype) or rule is None or not rule.enabled:
        return False
    chainers_own = getattr(rule, "_use_fp32_update", False) and param.dtype == np.float16
    return not chainers_own


def _is_ours(link):
    return CONVERSION in link.__dict__ or type(link).__module__.startswith("mixprec.links.")
