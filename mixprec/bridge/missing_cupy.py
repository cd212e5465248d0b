"""What Chainer says where a GPU is asked for and CuPy is not installed: also the command that installs it."""

from mixprec.base.installation import cuda_hint
from mixprec.compat.hooks import after_import
from mixprec.compat.registry import LEAVE


@after_import("chainer.backends.cuda:_resolution_error")
def install_command(error):
    """Without it the error for a GPU without CuPy names a page of Chainer, which is about a CuPy that is too old."""
    if not isinstance(error, ModuleNotFoundError) or error.name != "cupy":
        return LEAVE
    return ModuleNotFoundError(f" CuPy is not installed: {cuda_hint()}", name=error.name)
