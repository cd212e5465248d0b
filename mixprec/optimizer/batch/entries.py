"""An entry of the plan: one parameter in the batched update.

:class:`~mixprec.optimizer.batch.update_plan.UpdatePlan` makes an :class:`Entry` for each parameter in the batch. The
forms of the update read them.
"""

import dataclasses

import chainer

from mixprec.optimizer.rules.formulas import HookFormula, RuleFormula


@dataclasses.dataclass(frozen=True)
class BatchedHook:
    """A hook that runs inside of the batched update.

    Attributes:
        formula: its formula for one element.
        hook: Chainer's hook, whose attributes are its hyperparameters.
        counted: whether ``rule.t`` includes the step when the hook runs: true at rule level, false at optimizer level.
    """

    formula: HookFormula
    hook: object
    counted: bool


@dataclasses.dataclass(frozen=True)
class Entry:
    """One initialized parameter.

    Its array, its master and the states of its rule are dense, with their axes in the same order in memory
    (:mod:`~mixprec.backends.memory`); its gradient may have any memory order.

    Attributes:
        name: as in ``namedparams`` of the model.
        param: the parameter of the model.
        master: its master, float32 if ``param`` is float16 or bfloat16; otherwise it shares the array of ``param``.
        rule: Chainer's update rule, with its state; ``None`` if the parameter is not updated, only checked.
        formula: formula of the rule for one element; ``None`` without a rule.
        hooks: the :class:`BatchedHook` objects to run, in order.
    """

    name: str
    param: chainer.Parameter
    master: chainer.Parameter
    rule: chainer.UpdateRule | None
    formula: RuleFormula | None
    hooks: tuple[BatchedHook, ...]

    @property
    def is_rounded(self):
        """Whether the parameter is its master, rounded to 16 bits."""
        return self.param.dtype != self.master.dtype
