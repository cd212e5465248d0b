"""From the loader's batches to a Chainer model's inputs."""

from chainer import dataset


class _ToNCHW(dataset.Converter):
    # A class, because functions under @chainer.dataset.converter() cannot be pickled.

    def __call__(self, batch, device=None):
        """Sends a batch to a device and views its images as NCHW.

        Args:
            batch: ``(x, t)``: images (B, H, W, C) of any dtype, labels int32 (B,).
            device: Chainer's device or what :func:`chainer.get_device` takes; None leaves the arrays where they are.

        Returns:
            ``(x, t)``: x has shape (B, C, H, W) and NHWC memory order. On the CPU it shares the batch's memory.
        """
        x, t = batch
        # Sent before it is transposed: a copy to a GPU would make the view's memory order NCHW.
        return dataset.to_device(device, x).transpose(0, 3, 1, 2), dataset.to_device(device, t)


#: Converter for ``StandardUpdater`` and ``Evaluator`` with :class:`~mixprec.data.dali.DaliIterator`.
to_nchw = _ToNCHW()
