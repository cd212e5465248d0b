"""What a row runs in its process: training steps on one batch that lies on the device."""


class Step:
    """Training steps; a subclass for each framework and kind of device. One instance lives in the process of a row.

    A call runs one step; on a GPU it need not wait for it. The caller runs them in blocks: :meth:`warm_up`, timed
    calls, :meth:`peak`, :meth:`release`. In between other rows have the device.
    """

    def __call__(self):
        """Runs one step."""
        raise NotImplementedError

    def warm_up(self):
        """Runs steps, before each block, until the next ones do nothing for the first time."""
        self()

    def synchronize(self):
        """Waits until the device has done all that was asked of it; a CPU has when the call returns."""

    def release(self):
        """Gives back all memory of the device but what outlives a step: parameters, states, the batch."""

    def peak(self):
        """Returns the most bytes of the device's memory that were needed since :meth:`release`.

        On a CPU it is the memory of the process, the most that it ever had.
        """
        raise NotImplementedError
