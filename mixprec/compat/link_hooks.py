"""Chainer's link hooks that compute something from a weight, on layers that get their shape in the first pass.

``SpectralNormalization`` draws a vector, and computes a factor ``gamma``, as soon as there is a weight. For a layer
with a given shape that is when the hook is added. For a layer without a shape it is in the first pass, too late for a
file that is loaded before (https://github.com/chainer/chainer/issues/8453).
"""

from mixprec.compat.hooks import around

_SPECTRAL = "chainer.link_hooks.spectral_normalization:SpectralNormalization"
_STANDARDIZATION = "chainer.link_hooks.weight_standardization:WeightStandardization"


@around("chainer.link:Link.serialize")
def vectors_of_a_file(original, self, serializer):
    """Without it ``SpectralNormalization`` of a layer without a shape forgets its vector and gamma in a snapshot."""
    original(self, serializer)
    if self._n_local_link_hooks:
        _load_vectors(self, serializer)


def _load_vectors(link, serializer):
    from chainer import Deserializer, link_hooks  # Chainer does not import link_hooks by itself

    if not isinstance(serializer, Deserializer):
        return
    for hook in link.local_link_hooks.values():
        if not isinstance(hook, link_hooks.SpectralNormalization) or _is_prepared(hook, link):
            continue
        if getattr(link, hook.weight_name).array is None:  # the file has no array either
            continue
        known = link._params | link._persistent
        hook._prepare_parameters(link)
        for name in (link._params | link._persistent) - known:
            value = link.__dict__[name]
            try:
                loaded = serializer(name, value.array if name in link._params else value)
            except KeyError:  # weights of a network without the hook: drawn values stay, as after a first pass
                continue
            if name in link._persistent:
                link.__dict__[name] = loaded


def _is_prepared(hook, link):
    return hook.vector_name in link._persistent


@around(
    *(f"{hook}.forward_preprocess" for hook in (_SPECTRAL, _STANDARDIZATION)),
    why="Without it hooks of a ``Linear`` without a size take axis 1 of images for it, and copies of links find no "
    "vector.",
)
def before_a_pass(original, self, cb_args):
    import chainer  # is complete by now

    link, kwargs = cb_args.link, cb_args.kwargs
    if isinstance(link, chainer.links.Linear) and getattr(link, self.weight_name).array is None:
        x, batch_axes, *_ = *cb_args.args, kwargs.get("n_batch_axes", 1)
        link._initialize_params(chainer.utils.size_of_shape(x.shape[batch_axes:]))
    if hasattr(self, "vector_name"):  # one hook may be on several links, and on their copies
        self._initialized = _is_prepared(self, link)
    original(self, cb_args)


@around(*(f"{hook}.forward_postprocess" for hook in (_SPECTRAL, _STANDARDIZATION)))
def after_a_pass(original, self, cb_args):
    """Without it a layer with two of these hooks loses its weight: the second brings back what the first made."""
    import chainer  # is complete by now

    if isinstance(self.original_weight, chainer.Parameter):  # not the result of another hook
        original(self, cb_args)


@around(f"{_SPECTRAL}._prepare_parameters")
def gamma_in_float16(original, self, link, input_variable=None):
    """Without it gamma of ``SpectralNormalization`` is a TypeError in float16, which ``linalg`` does not know."""
    import chainer  # is complete by now

    self.use_gamma, has_gamma = False, self.use_gamma
    try:
        original(self, link, input_variable)
    finally:
        self.use_gamma = has_gamma
    if has_gamma:
        W = getattr(link, self.weight_name).array
        with chainer.using_device(link.device):
            _, s, _ = link.xp.linalg.svd(self.reshape_W(W.astype("float32" if W.itemsize < 4 else W.dtype)))
            gamma = chainer.utils.force_array(s[0], W.dtype)
        with link.init_scope():
            link.gamma = chainer.Parameter(gamma)
