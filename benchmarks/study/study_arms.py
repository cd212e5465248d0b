"""What a study trains: a config and its arms, which are overrides of it."""

import dataclasses
import os
import pathlib

from benchmarks.command_arguments import ArgumentsError
from mixprec.app import config as configs
from mixprec.app.config import ConfigError


@dataclasses.dataclass(frozen=True)
class Arm:
    """Runs that differ in their seeds only.

    Attributes:
        name: of the folders of its runs.
        settings: overrides of the config, ``KEY=VALUE``.
        against: name of the arm that it is compared with, or ``None``.
        most_seeds: more of them would show nothing new; ``None`` for no limit.
        masters: whether the optimizer works on FP32 masters.
    """

    name: str
    settings: tuple[str, ...] = ()
    against: str | None = "baseline"
    most_seeds: int | None = None
    masters: bool = True

    @property
    def title(self):
        """The settings, for people."""
        return ", ".join([each.partition(".")[2] for each in self.settings] + ["no masters"] * (not self.masters))


@dataclasses.dataclass(frozen=True)
class Study:
    """What is trained and compared.

    Attributes:
        config: path of the YAML file.
        make: the command that writes the images, or ``None`` where they are not known.
        arms: in the order of the table; one that another is compared with comes before it.
        settings: overrides of the config for all arms.
        margin: percentage points, a difference in accuracy that does not matter, fixed before the study was run.
    """

    config: pathlib.Path
    make: str | None
    arms: tuple[Arm, ...]
    settings: tuple[str, ...] = ()
    margin: float = 0.0

    def only(self, names):
        """Returns the study with some arms, and those that they are compared with.

        Args:
            names: of arms, or ``None`` for all.

        Raises:
            ArgumentsError: there is no such arm.
        """
        known = {arm.name: arm for arm in self.arms}
        wanted = set(known if names is None else names)
        for name in sorted(wanted - set(known)):
            raise ArgumentsError(f"--arms {name}: no such arm; allowed: {', '.join(known)}")
        for arm in reversed(self.arms):
            if arm.name in wanted and arm.against is not None:
                wanted.add(arm.against)
        return dataclasses.replace(self, arms=tuple(arm for arm in self.arms if arm.name in wanted))

    def checked_epochs(self, networks):
        """Finds what would end the study before its first run, or after some; returns the epochs of a run.

        Args:
            networks: names of networks for ``model.arch``.

        Raises:
            ArgumentsError: an arm is no config, or there are no images.
            mixprec.app.config.ConfigError: the config is wrong without any arm.
        """
        choices = {"model.arch": sorted(networks)}
        config = configs.load(self.config, list(self.settings), choices=choices)
        for arm in self.arms:
            try:
                configs.load(self.config, [*self.settings, *arm.settings], choices=choices)
            except ConfigError as error:
                raise ArgumentsError(f"arm {arm.name}: {error}") from error
        for folder in (config.data.train, config.data.val):
            if self.make is not None and not os.path.isdir(folder):
                raise ArgumentsError(f"{folder} is no folder; this makes it: {self.make}")
        return config.training.epochs
