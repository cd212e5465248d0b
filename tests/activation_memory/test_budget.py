"""Budgets of memory as text and as numbers."""

import numpy as np
import pytest

from mixprec.activation_memory.budget import check_budget, in_bytes, is_budget

BUDGETS = [
    *(("16 GB", 16 * 10**9), ("1.5GiB", 3 * 2**29), ("500 mib", 500 * 2**20), (" 2000 kb ", 2_000_000)),
    *((".5 GB", 500_000_000), ("7 TB", 7 * 10**12), ("3e9", 3 * 10**9), ("12000000 B", 12_000_000)),
    *((2.5e9, 2_500_000_000), (np.int64(4 << 20), 4 << 20)),
]


@pytest.mark.parametrize(("budget", "size"), BUDGETS)
def test_sizes(budget, size):
    assert check_budget(budget) == size
    assert in_bytes(check_budget(budget), 1) == size


@pytest.mark.parametrize("budget", ["0.8", 0.8, ".8", np.float64(0.8)])
def test_shares(budget):
    assert in_bytes(check_budget(budget), 1000) == 800


@pytest.mark.parametrize(
    "budget",
    ["", "GB", "1..5 GB", "1 XB", "-1 GB", 0, -3, True, None, float("nan"), 2**51, "1e60", [], 1, "1.0", ".", "12 B"],
)
def test_what_is_none(budget):
    assert not is_budget(budget)
