"""The interface of the three forms of an update: on the host, on a device, and Chainer's own loop."""

import abc


class UpdateForm(abc.ABC):
    """A way to check and update parameters, made for one plan and used until the plan changes.

    :class:`~mixprec.optimizer.step.OptimizerStep` calls :meth:`check`, :meth:`run_hooks` and :meth:`update` in this
    order. A form combines work in the first of them that allows it:

    ============  ===================================  ==========================  ===================================
    \\             :meth:`check`                        :meth:`run_hooks`           :meth:`update`
    ============  ===================================  ==========================  ===================================
    HostForm      FP32 gradients in blocks: finite?    hooks on blocks: finite?    group by group, unless skipped
    DeviceForm    launches of the kernel ``check``,    (they have run in           a launch of the kernel ``update``,
                  with hooks                           ``check``)                  which looks at the flag
    FallbackForm  FP32 gradients of masters: finite?   (Chainer's loop runs them)  Chainer's loop; taken back if a hook
                                                                                   makes something inf or NaN
    ============  ===================================  ==========================  ===================================

    ``skip`` always says whether the step is skipped: a bool, or on a device a boolean array of shape () that is not
    read.

    Attributes:
        moves_counters: whether :meth:`update` also advances the loss scale and the step counters: the kernel on a
            device does, as the host does not know whether the step is skipped.
        batch: the :class:`~mixprec.optimizer.batch.device_batch.DeviceBatch` that a graph may capture, or ``None``.
        restored: ``[(array, its copy)]`` of running statistics that :meth:`update` restores in a skipped step.
        zeroed: ids of the parameters whose gradients :meth:`update` sets to zero.
    """

    moves_counters = False
    batch = None
    restored = ()
    zeroed = ()

    @abc.abstractmethod
    def check(self, scale, gradients, statistics, done):
        """Unscales all gradients into FP32.

        Args:
            scale: the common scale of all gradients, ``MIXED`` if there are several, see
                :mod:`~mixprec.precision.grad_scales`.
            gradients: the gradients of the model's parameters, an array or ``None`` for each.
            statistics: :class:`~mixprec.optimizer.running_statistics.RunningStatistics`.
            done: ids of the parameters whose masters have their gradients already, from a preconditioner.

        Returns:
            ``skip``: whether any gradient is not finite.
        """

    def run_hooks(self, skip):
        """Runs hooks on the unscaled gradients, unless skipped; returns ``skip``, also true if any is not finite now.

        Masters and states have not changed yet. A form whose hooks run elsewhere does nothing here.
        """
        return skip

    @abc.abstractmethod
    def update(self, skip, scaler, counter):
        """Updates masters, states, ``t`` and the rounded parameters: all or nothing.

        Args:
            skip: whether to skip.
            scaler: the loss scale.
            counter: :class:`~mixprec.precision.step_counter.StepCounter`.

        Returns:
            ``skip``, also true if an updated value is not finite.
        """

    def forget(self):  # noqa: B027
        """Releases the gradients of :meth:`check`, if no :meth:`update` follows."""

    def settle(self):
        """Brings ``t`` of optimizer and rules up to date, with one read if steps on a device are outstanding.

        Returns:
            Whether any were outstanding; always false on the host, where a step is counted at once.
        """
        return False
