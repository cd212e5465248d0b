"""The batched update of the native library: each formula bit for bit as Chainer, and arguments of all kinds."""

import itertools
import os
import subprocess
import sys
import threading

import chainer
import numpy as np
import pytest
from chainer import optimizer_hooks

from mixprec.native.native_library import library
from mixprec.optimizer.rules import generate
from mixprec.optimizer.rules.formulas import CARRIED, hook_formula_of, rule_formula_of
from tests import ROOT
from tests.stand_ins.update_pair import RULES, new_optimizer

F16, F32 = np.float16, np.float32
SIZE = 3001  # not a multiple of a vector or a block
SIZES = (1, 0, 17, 1024, 2**15 - 1, 2**15, 2**15 + 1, 5, 70001, *[3] * 600)
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-40, 1e-38, 6e4, 1e20, -3e38, 1e-20, 0.5, -2.0], F32)
SQUARES = {"h", "msg", "msdx", "ms", "n", "v", "vhat", "g2", "mem"}  # sums of them are not negative
NATIVE = [name for name in RULES if name not in ("LARS", "LAMB")]
pytestmark = pytest.mark.skipif(library() is None, reason="without the native library")


@pytest.fixture
def threads():
    """Sets how many threads there are, for the time of a test."""
    before = library().threads()
    yield library().set_threads
    library().set_threads(before)


def _arrays(seed, count):
    """Arrays with all combinations of special values at their beginning, and random numbers of all magnitudes."""
    triples = np.array(list(itertools.product(SPECIAL, repeat=3)), F32)
    random = np.random.RandomState(seed)
    for column in range(count):
        x = (random.normal(0, 1, SIZE) * 10.0 ** random.randint(-12, 6, SIZE)).astype(F32)
        x[: len(triples)] = triples[:, column] if column < 3 else random.permutation(triples[:, 0])
        yield x


def _same(a, b):
    """Whether two float32 arrays are the same bit for bit, but for which NaN it is."""
    return bool(((a.view(np.int32) == b.view(np.int32)) | (np.isnan(a) & np.isnan(b))).all())


def _step(table, gradients, hook_numbers, numbers, inverses=1.0):
    library().update_load(table, gradients, inverses)
    found = library().update_check(table, hook_numbers)
    library().update_run(table, hook_numbers, numbers)
    library().update_load(table, None, None)
    return found


def _assert_chainers_bits(optimizer):
    """Three steps from the same states; numbers of a step are those of Chainer's rule."""
    rule = optimizer.create_update_rule()
    formula = rule_formula_of(rule)
    p, g, *states = _arrays(1, 2 + len(formula.states))
    states = [abs(x) if of in SQUARES else x for of, x in zip(formula.states, states, strict=True)]
    param = chainer.Parameter(p.copy())
    param.grad = g.copy()
    rule._init_states(param)
    rule.state.update({name: state.copy() for name, state in zip(formula.states, states, strict=True)})
    if CARRIED in rule.state:
        rule.state[CARRIED][...] = 1.0, 0.5  # a step that is not the first, which ignores the states
    table = library().update_table(formula.name, (), [(None, p, *states)])
    for step in range(3):
        assert _step(table, [g], (), formula.numbers_of(rule, rule.t + 1)) == 3
        with np.errstate(all="ignore"):
            rule.update(param)
        assert _same(p, param.array), step
        for name, state in zip(formula.states, states, strict=True):
            assert _same(state, rule.state[name]), (step, name)


@pytest.mark.parametrize("name", NATIVE)
def test_a_rule_has_chainers_bits(name):
    _assert_chainers_bits(new_optimizer(name))


@pytest.mark.parametrize("final_lr", [-0.07, np.nan])
@pytest.mark.parametrize("kind", [chainer.optimizers.AdaBound, chainer.optimizers.AMSBound])
def test_odd_bounds_of_a_rate_are_those_of_numpys_clip(kind, final_lr):
    _assert_chainers_bits(kind(final_lr=final_lr))


HOOKS = [
    *map(optimizer_hooks.WeightDecay, (0.01, 0.0, -0.0)),
    *map(optimizer_hooks.Lasso, (0.01, 0.0, -0.0)),
    optimizer_hooks.GradientHardClipping(-0.5, 0.25),
    optimizer_hooks.GradientHardClipping(0.0, -0.0),
]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.name)
def test_a_hook_has_chainers_bits(hook):
    formula = hook_formula_of(hook)
    p, g, v = _arrays(2, 3)
    v[...] = -0.0
    param = chainer.Parameter(p.copy())
    param.grad = g.copy()
    with np.errstate(all="ignore"):
        hook(None, param)
    table = library().update_table("MomentumSgd", (formula.name,), [(None, p, v)])
    _step(table, [g], (formula.hyperparameters_of(hook),), (-1.0, 1.0))  # v = v - -g
    assert _same(v, param.grad)


@pytest.mark.slow
def test_avx2_gives_these_bits_too():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "has_chainers_bits"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "MIXPREC_NATIVE": "avx2"}, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert f"{len(NATIVE) + 8} passed" in done.stdout


def test_generated_files_are_those_of_the_declarations():
    for path, text in generate.files().items():
        assert path.read_text() == text, f"{path}: run python -m mixprec.optimizer.rules.generate"


def _many(seed):
    random = np.random.RandomState(seed)
    masters = [random.normal(0, 1, size).astype(F32) for size in SIZES]
    params = [None if i % 3 == 0 else master.astype(F16) for i, master in enumerate(masters)]
    return masters, params, [np.zeros_like(master) for master in masters]


@pytest.mark.parametrize("count", [1, 3])
def test_sizes_dtypes_and_threads(threads, count):
    threads(count)
    masters, params, velocities = _many(3)
    gradients = [master.astype((F32, F16)[i % 2]) for i, master in enumerate(_many(4)[0])]
    inverses = [2.0 ** -(i % 7) for i in range(len(SIZES))]
    expected = [master.copy() for master in masters]
    table = library().update_table("MomentumSgd", ("WeightDecay",), list(zip(params, masters, velocities, strict=True)))
    for i in range(1, len(SIZES), 3):
        params[i][SIZES[i] // 2 :] = F16(100)  # by the program
        expected[i][SIZES[i] // 2 :] = F32(100)
    assert _step(table, gradients, ((0.01,),), (0.1, 0.9), inverses) == 3
    for i, (gradient, inverse) in enumerate(zip(gradients, inverses, strict=True)):
        g = gradient.astype(F32) * F32(inverse)
        v = -F32(0.1) * (g + F32(0.01) * expected[i])
        assert np.array_equal(velocities[i], v)
        assert np.array_equal(masters[i], expected[i] + v)
        assert params[i] is None or np.array_equal(params[i], masters[i].astype(F16))


@pytest.mark.parametrize(("count", "where"), [(1, 0), (3, 6), (3, 8), (1, len(SIZES) - 1)])
def test_one_overflow_is_found_wherever_it_is(threads, count, where):
    threads(count)
    masters, params, velocities = _many(5)
    table = library().update_table("MomentumSgd", ("WeightDecay",), list(zip(params, masters, velocities, strict=True)))
    gradients = [master.copy() for master in masters]
    gradients[where][-1] = -np.inf
    library().update_load(table, gradients, 1.0)
    assert library().update_check(table, ((0.01,),)) == 0
    gradients[where][-1] = 0
    assert library().update_check(table, ((0.01,),)) == 3
    masters[where][-1] = np.inf
    if params[where] is not None:
        params[where][-1] = np.inf
    assert library().update_check(table, ((0.01,),)) == 1  # after the hook


def test_the_table_holds_what_it_works_on_and_lets_gradients_go():
    master, velocity, gradient = np.ones(5, F32), np.zeros(5, F32), np.ones(5, F32)
    table = library().update_table("MomentumSgd", (), [(None, master, velocity)])
    free = sys.getrefcount(gradient)
    library().update_load(table, [gradient], 1.0)
    assert sys.getrefcount(gradient) > free
    view = memoryview(master)
    del master, velocity
    library().update_run(table, (), (1.0, 0.0))
    assert list(view) == [0.0] * 5
    library().update_load(table, None, None)
    assert sys.getrefcount(gradient) == free
    with pytest.raises(ValueError, match="there are no gradients"):
        library().update_run(table, (), (1.0, 0.0))
    held = sys.getrefcount(view.obj)
    del table
    left = sys.getrefcount(view.obj)
    assert left == held - 1


ONE, READ_ONLY = np.ones(4, F32), np.ones(4, F32)
READ_ONLY.flags.writeable = False
UNALIGNED = np.zeros(17, np.uint8)[1:].view(F32)


WRONG_TABLES = [
    *((), ("Sgd", (), 3), ("Sgd", [], []), ("Sgd", ("WeightDecay",) * 9, []), ("Sgd", ("Sgd",), []), ("sgd", (), [])),
    *(("\ud800", (), []), (7, (), []), ("Sgd", (), [ONE]), ("Sgd", (), [(None, ONE, ONE)])),
    *(("MomentumSgd", (), [(None, ONE)]), ("MomentumSgd", (), [(None, ONE, ONE[1:])])),
    *(("Sgd", (), [(None, ONE), (None, ONE[::2])]), ("Sgd", (), [(None, READ_ONLY)]), ("Sgd", (), [(None, UNALIGNED)])),
    *(("Sgd", (), [(None, ONE.astype(float))]), ("Sgd", (), [(None, ONE.astype(">f4"))]), ("Sgd", (), [(ONE, ONE)])),
    *(("Sgd", (), [(ONE[1:].astype(F16), ONE)]), ("Sgd", (), [(None, None)]), (None, (), [(None, ONE, ONE)])),
]


@pytest.mark.parametrize("arguments", WRONG_TABLES)
def test_wrong_tables_are_refused(arguments):
    with pytest.raises((ValueError, TypeError, BufferError)):
        library().update_table(*arguments)


@pytest.mark.parametrize("entries", [[(None, ONE, ONE)], [(None, ONE[:2], ONE[2:]), (None, ONE[1:2].copy(), ONE[3:])]])
def test_a_table_whose_arrays_share_memory_is_refused(entries):
    with pytest.raises(ValueError, match="two arrays of the table share memory"):
        library().update_table("MomentumSgd", (), entries)


def test_wrong_steps_are_refused():
    master = np.ones(4, F32)
    native, table = library(), library().update_table("Sgd", ("WeightDecay",), [(None, master), (None, ONE.copy())])
    good = [ONE, ONE]
    for gradients, inverses in (
        *(([ONE], 1.0), ((ONE, ONE), 1.0), (good, None), (good, [1.0]), (good, [1.0, "a"]), ([ONE, ONE[1:]], 1.0)),
        *(([ONE, UNALIGNED], 1.0), ([ONE, ONE.astype(float)], 1.0), ([ONE, None], 1.0)),
        ([ONE, np.zeros((4, 2), F32)[:, 0]], 1.0),
    ):
        with pytest.raises((ValueError, TypeError, BufferError)):
            native.update_load(table, gradients, inverses)
        with pytest.raises(ValueError, match="no gradients"):
            native.update_run(table, ((0.1,),), (0.1,))
    native.update_load(table, good, [1, 1])
    for hook_numbers, numbers in ((((0.1,),), ()), (((0.1,),), (0.1, 0.1)), ((), (0.1,)), (((),), (0.1,)), (0, (0.1,))):
        with pytest.raises((ValueError, TypeError)):
            native.update_run(table, hook_numbers, numbers)
    for call in (native.update_load, native.update_check, native.update_run):
        for arguments in ((), (table,), (3, good, 1.0), (None, ()), (object(), (), ())):
            with pytest.raises((ValueError, TypeError)):
                call(*arguments)
    only_checked = native.update_table(None, (), [(None, master)])
    native.update_load(only_checked, [ONE], 1.0)
    with pytest.raises(ValueError, match="no rule"):
        native.update_run(only_checked, (), ())
    assert np.array_equal(master, ONE)


class _Meddles:
    """A number that lets gradients go while it is read."""

    def __init__(self, table):
        self.table = table

    def __float__(self):
        library().update_load(self.table, None, None)
        return 0.1


def test_a_number_with_code_of_its_own_takes_no_gradient_away_unseen():
    table = library().update_table("Sgd", (), [(None, np.ones(4, F32))])
    library().update_load(table, [ONE], 1.0)
    with pytest.raises(ValueError, match="no gradients"):
        library().update_run(table, (), (_Meddles(table),))


def test_a_number_may_empty_the_list_of_gradients():
    class Empties:
        def __float__(self):
            gradients.clear()
            return 1.0

    masters = [np.ones(4, F32) for _ in range(2)]
    table = library().update_table("Sgd", (), [(None, master) for master in masters])
    gradients = [np.ones(4, F32) for _ in masters]
    with pytest.raises(ValueError, match="2 gradients and inverses are needed"):
        library().update_load(table, gradients, [Empties(), 1.0])


def test_two_threads_do_not_update_the_same_at_once():
    master, gradient = np.ones(1 << 22, F32), np.ones(1 << 22, F32)
    table = library().update_table("Sgd", (), [(None, master)])
    library().update_load(table, [gradient], 1.0)
    errors = []

    def work():
        for _ in range(20):
            try:
                library().update_run(table, (), (1.0,))
            except RuntimeError as error:
                errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (master == 1 - (40 - len(errors))).all()
