"""Links on NHWC variables: subclasses of Chainer's with the same parameters under the same names."""

from mixprec.links.batch_normalization import BatchNormalization
from mixprec.links.convolution_2d import Convolution2D
from mixprec.links.deconvolution_2d import Deconvolution2D
from mixprec.links.linear import Linear

__all__ = ["BatchNormalization", "Convolution2D", "Deconvolution2D", "Linear"]
