"""Two batch normalizations that are added, on CUDA: by own kernels only, in fewer passes than one by one."""

from mixprec.backends.cuda.batch_norm_kernels import BatchNormKernels, by_batch


class DualBatchNorms(BatchNormKernels):
    """The pairs of batch normalizations of :class:`~mixprec.backends.primitives.Primitives`.

    Results equal the kernels for one normalization bit for bit. cuDNN has no engine for pairs, and is not used even
    where its engines are candidates for one.
    """

    def dual_batch_norm(self, one, other):
        relu, of_one, of_other = one.attributes.relu, self._saved_of(one), self._saved_of(other)
        reads_first = one.sums is None or other.sums is None
        mask, y = self._mask_for(one.x) if relu else None, self._empty(one.x.shape, one.x.dtype)
        after = [*by_batch(one, of_one), *by_batch(other, of_other), int(reads_first)]
        before, dense = [one.x, other.x, y, mask], [one.x, other.x, y]
        macros = (("RELU", int(relu)),)
        self._run_rows("batch_norm_dual", "batch_norm_dual_apply", before, after, dense, macros)
        return y, (of_one._replace(mask=mask), of_other)

    def dual_batch_norm_backward(self, dy, one, other, saved, *, plus=None):
        file, relu = "batch_norm_dual_backward", one.attributes.relu
        xs = [one.x, other.x]
        dxs = [self._empty(dy.shape, dy.dtype) for _ in xs]
        kept = self._empty(dy.shape, dy.dtype) if relu or plus is not None else None
        found, how = [], []
        for each, own in zip((one, other), saved, strict=True):
            dgamma, dbeta, slope, offset = (self._per_channel(each.gamma) for _ in range(4))
            found.append((dgamma, dbeta))
            how += [each.gamma, own.mean, own.invstd, dgamma, dbeta, slope, offset]
        macros = (("RELU", int(relu)), ("PLUS", int(plus is not None)))
        dense = [dy, plus, *xs, kept, *dxs]
        before, after = [dy, plus, *xs, saved[0].mask, kept], [*self._parts(dy, 3), *how]
        self._run_rows(file, "batch_norm_dual_backward_sums", before, after, dense, macros)
        g = dy if kept is None else kept
        self._run_rows(file, "batch_norm_dual_backward_apply", [g, *xs, *dxs], how, dense, macros)
        return (dxs[0], *found[0]), (dxs[1], *found[1]), g
