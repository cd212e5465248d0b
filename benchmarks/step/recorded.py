"""The launches of a captured step as it is in this checkout, and with other choices of the device."""

from benchmarks import configured
from benchmarks.processes import Worker
from benchmarks.recording_device import null_device
from benchmarks.step import counts
from benchmarks.step.launches import launches_of

CONFIG = "static_graph.yaml"
AS_IT_IS, STATISTICS_APART = "as it is", "statistics by launches of their own"
_BATCH = 2  # the launches do not depend on it


def record(network, *, arch, size, dtype, choices=(AS_IT_IS,)):
    """Records captured steps, each in a process of its own.

    Args:
        network: callable, at the top of a module, from the number of classes to a Chainer link from images to logits.
        arch: its name.
        size: height and width of an image in pixels.
        dtype: ``"float16"``, ``"bfloat16"`` or ``"float32"``.
        choices: some of :data:`AS_IT_IS`, what is taken by rule everywhere, as without measuring, and
            :data:`STATISTICS_APART`, no sums in convolutions.

    Returns:
        dict from choices to lists of :class:`~benchmarks.step.launches.Launch`, in the graph and around it

    Raises:
        RuntimeError: a step cannot be recorded.
    """
    found = {}
    for choice in choices:
        with Worker() as worker:
            found[choice] = worker.call(_record, network, arch, size, dtype, choice)
    return found


def _record(network, arch, size, dtype, choice):
    config = configured.load(CONFIG, arch=arch, batch=_BATCH, size=size, overrides=[f"precision.compute={dtype}"])
    if choice == STATISTICS_APART:
        supports = null_device.CudnnContext.supports
        null_device.CudnnContext.supports = lambda context, asked: "sum" not in asked.has and supports(context, asked)
    inside, outside, model = counts.notes_of_captured(config, network)
    return launches_of([*inside, *outside], _BATCH, model)
