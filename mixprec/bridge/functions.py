"""The functions of ``cupy.cudnn`` that Chainer 7.8.1 and ChainerMN use, with the signatures of CuPy 7 to 13.

They are all public names of the modules below, each defined once.
"""

from mixprec.bridge import batch_norm, constants, convolution, dropout, not_bridged, pooling_activation, switches

for _home in (batch_norm, constants, convolution, dropout, not_bridged, pooling_activation, switches):
    for _name, _value in vars(_home).items():
        if not _name.startswith("_") and getattr(_value, "__module__", None) == _home.__name__:
            globals()[_name] = _value
