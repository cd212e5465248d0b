"""Optimizers for PyTorch, written from their publications: what the rules of mixprec are compared with."""

import torch


class SGDW(torch.optim.SGD):
    """``torch.optim.SGD`` after timm's decoupled decay, ``param.mul_(1. - lr * weight_decay)``."""

    def __init__(self, params, lr, decay, **options):
        super().__init__(params, lr=lr, **options)
        self._decay = decay

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                param.mul_(1.0 - group["lr"] * self._decay)
        super().step()


class ScheduleFreeSGD(torch.optim.Optimizer):
    """The lines of ``SGDScheduleFree`` in facebookresearch/schedule_free, with ``r=0`` and ``weight_lr_power=2``."""

    def __init__(self, params, lr, momentum=0.9, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.lr_max, self.weight_sum = -1.0, 0.0

    @torch.no_grad()
    def step(self):
        (group,) = self.param_groups
        lr, momentum = group["lr"], group["momentum"]
        self.lr_max = max(lr, self.lr_max)
        weight = self.lr_max**2
        self.weight_sum += weight
        ckp1 = weight / self.weight_sum if self.weight_sum else 0
        for y in group["params"]:
            state = self.state[y]
            if "z" not in state:
                state["z"] = torch.clone(y)
            z, grad = state["z"], y.grad.add(y, alpha=group["weight_decay"])
            y.lerp_(end=z, weight=ckp1)
            y.add_(grad, alpha=lr * (momentum * (1 - ckp1) - 1))
            z.sub_(grad, alpha=lr)

    @torch.no_grad()
    def eval_arrays(self):
        """Returns x of each parameter, to which ``eval()`` sets them."""
        (group,) = self.param_groups
        return [y.lerp(end=self.state[y]["z"], weight=1 - 1 / group["momentum"]).numpy() for y in group["params"]]
