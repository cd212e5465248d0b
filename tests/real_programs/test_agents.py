"""Agents of ChainerRL learn a toy task as well in 16 bits as in plain Chainer: the library is unmodified.

DQN and A2C call ``backward()`` themselves: BF16 needs no scale for that, FP16 a ``loss_scale=None``.
"""

import pytest

from tests.real_programs import run_script

pytestmark = pytest.mark.long

LEARNED = {"DQN": 0.8, "A2C": 0.8, "PPO": 0.75, "SAC": 0.65, "TD3": 0.75}  # by chance: 0.33, or 0.4 to 0.5
OWN_BACKWARD = ("DQN", "A2C")


@pytest.mark.parametrize("way", ["plain", "float16", "bfloat16"])
@pytest.mark.parametrize("agent", LEARNED)
def test_agent_learns(agent, way):
    arguments = [] if way == "plain" else [way]
    if way == "float16" and agent in OWN_BACKWARD:
        arguments.append("--no-scale")
    assert float(run_script("agents", agent, *arguments, needs="chainerrl")) > LEARNED[agent]


def test_own_backward_in_float16_names_the_ways_out():
    said = run_script("agents", "DQN", "float16", needs="chainerrl", code=1)
    for way in ("loss_scale=None", "bfloat16", "scale_loss"):
        assert way in said
