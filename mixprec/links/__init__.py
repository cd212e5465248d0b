"""Links on NHWC variables: subclasses of Chainer's links with the same parameters under the same names.

For new models; :func:`mixprec.convert` needs none of them. Reading order: ``convolution_2d``, then
``deconvolution_2d``, ``linear`` and ``batch_normalization``, each one link that calls the function of the same name in
:mod:`mixprec.functions`.
"""

from mixprec.links.batch_normalization import BatchNormalization
from mixprec.links.convolution_2d import Convolution2D
from mixprec.links.deconvolution_2d import Deconvolution2D
from mixprec.links.linear import Linear

__all__ = ["BatchNormalization", "Convolution2D", "Deconvolution2D", "Linear"]
