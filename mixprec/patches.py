"""The list of all attributes that mixprec replaces in other libraries at run time: ``mixprec info --patches``.

Each package declares its own entries, see :class:`mixprec.compat.registry.Patch`; all of them are imported here.
:func:`undo` restores all attributes.
"""

from mixprec.activation_memory import offloading, recomputation  # noqa: F401
from mixprec.bridge import branches, missing_cupy, placing  # noqa: F401
from mixprec.compat import registry
from mixprec.compat.registry import replaced, undo
from mixprec.distributed import readiness
from mixprec.functions import sums, widening  # noqa: F401
from mixprec.graph_capture import called_links, watch  # noqa: F401
from mixprec.optimizer import gradients, model_files  # noqa: F401
from mixprec.precision import pass_scales, repeated_pass, weight_copies, without_masters  # noqa: F401  # noqa: F401
from mixprec.rewrite import replacements  # noqa: F401

__all__ = ["entries", "replaced", "report", "undo"]

# A heading for each ``when``, in the order in which a program gets there. Replacements during a single import come
# after the first.
_MOMENTS = {
    "import chainer": "When Chainer is imported (before or after mixprec)",
    "mixprec.links": "When mixprec.links is imported (convert does it)",
    "mixprec.functions": "When the first function of mixprec runs",
    "mixprec.convert": "When mixprec.convert runs",
    weight_copies.WHEN: "When mixprec.convert or MixedPrecisionOptimizer.setup runs",
    "setup": "When MixedPrecisionOptimizer.setup runs",
    readiness.WHEN: "When MixedPrecisionOptimizer.setup runs with a communicator",
    repeated_pass.WHEN: "While update() searches for the first loss scale",
    "mixprec.recompute": "When mixprec.recompute marks a link",
    "mixprec.recompute, mixprec.offload": "When a function is recomputed, or mixprec.offload runs",
    "mixprec.offload": "When mixprec.offload runs",
    "mixprec.capture": "While capture watches two steps",
}


def entries():
    """Returns all entries, a list of :class:`~mixprec.compat.registry.Patch` in the order of their ``when``.

    Example:
        >>> from mixprec import patches
        >>> patch = next(patch for patch in patches.entries() if patch.when == "mixprec.capture")
        >>> patch.targets
        ('chainer.function_node:FunctionNode.apply',)
        >>> print(patch.why[:52])
        Without it launches by CuPy itself are not compared.
    """
    return sorted(registry.patches(), key=lambda patch: (_moment(patch), patch.targets, patch.why))


def report():
    """Returns the list as text: for each event the attributes that are replaced then, with reasons.

    Example:
        >>> from mixprec import patches
        >>> print(patches.report().splitlines()[0])
        Attributes that mixprec replaces. Below each: what goes wrong without it.
    """
    targets = {}
    for patch in entries():
        targets.setdefault(patch.when, {}).setdefault(patch.why, []).extend(patch.targets)
    lines = ["Attributes that mixprec replaces. Below each: what goes wrong without it."]
    for when, reasons in targets.items():
        lines += ["", f"{_MOMENTS.get(when, when[0].upper() + when[1:])}:"]
        for why, replaced_for_it in reasons.items():
            lines += [f"  {target}" for target in replaced_for_it]
            lines.append("      " + why.removeprefix("Without it ").replace("``", ""))
    lines += ["", "To undo: from mixprec import patches; patches.undo()"]
    return "\n".join(lines)


def _moment(patch):
    return list(_MOMENTS).index(patch.when) if patch.when in _MOMENTS else 0.5
