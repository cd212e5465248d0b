"""The list of all that is replaced in Chainer is complete, can be taken back, and is printed and in the docs."""

import ast
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mixprec import patches
from mixprec.compat import registry

ROOT = Path(__file__).parents[1]

# Chainer without mixprec. What it needs for being imported on NumPy 2 is given by hand.
PLAIN = """
    import sys, types, warnings
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != "mixprec.startup"]
    for name in [name for name in sys.modules if name.startswith("mixprec")]:
        del sys.modules[name]
    import numpy
    stub = types.ModuleType("chainer._environment_check")
    stub.check = lambda: None
    sys.modules[stub.__name__] = stub
    numpy.sctypes = {"int": [numpy.int32, numpy.int64], "float": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import chainer
        from tests.attributes import differences, import_everything, keys_of, snapshot
        import_everything()
    del numpy.sctypes
"""

COMPARE = """
    import fnmatch, json
    import chainer.functions as F, chainer.links as L

    def assert_unchanged(before):
        different = differences(before, snapshot())
        assert not different, sorted(different)

    def compare(before, *moments):
        after = snapshot()
        mine = {place: found for place, found in registry.replaced().items() if found[-1].when in moments}
        different, listed = differences(before, after), keys_of(mine, after)
        assert different == listed, (moments, sorted(different - listed), sorted(listed - different))
        assert {found[-1].when for found in mine.values()} == set(moments)
        for (owner, name), found in mine.items():
            module, path = getattr(owner, "__module__", None), getattr(owner, "__qualname__", None)
            target = f"{module}:{path}.{name}" if module else f"{owner.__name__}:{name}"
            patterns = [each for given in found[-1].targets for each in registry.expanded(given)]
            assert any(fnmatch.fnmatchcase(target, pattern) for pattern in patterns), (target, patterns)
        return after

    model = chainer.Sequential(L.Convolution2D(3, 4, 3), L.BatchNormalization(4), F.relu, L.Linear(None, 2))
    x = numpy.ones((2, 3, 5, 5), "float32")
    chainer.optimizers.Adam().setup(model).update(lambda: F.sum(model(x)))  # Chainer sets some names at first use

    chainer.backends.cuda.check_cuda_available._already_warned = False  # where CuPy can be used, it has told of cuDNN

    plain = snapshot()
    import mixprec
    from mixprec.compat import registry
    imported = compare(plain, "import chainer")
    print(json.dumps(sorted(keys_of(registry.replaced(), imported))))
"""

STEPS = """
    mixprec.convert(model, x)
    converted = compare(imported, "mixprec.convert", "mixprec.convert, setup", "mixprec.functions", "mixprec.links")

    class Own(chainer.Chain):
        def __call__(self, x):
            return x

    own = Own.__call__
    for _ in range(2):
        mixprec.convert(Own())
    assert Own.__call__ is not own and Own.__call__.__wrapped__ is own
    assert_unchanged(converted)

    optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.Adam())
    assert_unchanged(converted)
    optimizer.setup(model)
    set_up = compare(converted, "setup")
    mixprec.convert(model, x)
    mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(L.Linear(2, 2))

    from mixprec import patches
    step = mixprec.capture(optimizer, lambda x: F.sum(model(x)))
    for _ in range(4):
        step(x)
    assert_unchanged(set_up)
    watching = [patch for patch in patches.entries() if patch.when == "mixprec.capture"]
    assert watching
    for patch in watching:
        with patch.applied():
            compare(set_up, "mixprec.capture")
        assert_unchanged(set_up)

    patches.undo()
    assert_unchanged(plain)
    assert Own.__call__ is own
    assert not registry.replaced()

    mixprec.convert(L.Linear(2, 2))  # once more
    assert L.Linear.__call__.__wrapped__ is plain["chainer.link", "Link.__call__"]
"""


def _run(*parts):
    code = "".join(textwrap.dedent(part) for part in parts)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=100, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_differs_from_plain_chainer_is_the_list_at_each_step_and_can_be_taken_back():
    _run(PLAIN, COMPARE, STEPS)


@pytest.mark.slow
def test_what_other_code_took_off_is_put_back_by_the_next_convert_and_setup():
    """Replacements made inside of ``mock.patch`` go with its end."""
    _run("""
        import io
        from unittest import mock
        import chainer, numpy, mixprec
        import chainer.functions as F, chainer.links as L
        from chainer import _backprop_utils
        from chainer.functions.activation import relu
        from mixprec.functions import sums

        class Own(chainer.Chain):
            def __init__(self):
                super().__init__(l=L.Linear(3, 4))

            def __call__(self, x):
                return F.relu(self.l(x))

        x = numpy.ones((2, 3), "float32")
        places = [(chainer.FunctionNode, "apply"), (chainer.Link, "__call__"), (chainer.Link, "serialize")]
        places += [(chainer.Parameter, "cleargrad"), (chainer.GradientMethod, "update"), (relu.ReLU, "forward_cpu")]
        originals = [getattr(*place) for place in places]

        def prepared():
            model = Own()
            optimizer = mixprec.MixedPrecisionOptimizer(chainer.optimizers.SGD()).setup(model)
            mixprec.convert(model)
            return model, optimizer

        for wrong in (False, True):
            prepared()
            for (owner, name), original in zip(places, originals):
                setattr(owner, name, original if not wrong else mock.Mock(side_effect=original))  # self is lost
            def new(self, x):
                return F.tanh(self.l(x))
            Own.__call__ = new
            _backprop_utils.GradTable = sums._GradTable.__base__
            for (owner, name), original in zip(places, originals):
                setattr(owner, name, original)
            model, optimizer = prepared()
            y = model(x)
            assert y.dtype == "float32"
            assert Own.__call__ is not new and Own.__call__.__wrapped__ is new
            assert all(getattr(*place) is not original for place, original in zip(places, originals))
            file = io.BytesIO()
            chainer.serializers.save_npz(file, model)
            file.seek(0)
            assert numpy.load(file)["l/W"].dtype == "float32"
            mixprec.functions.relu(chainer.Variable(numpy.ones((1, 2, 2, 8), "float16")))
            assert _backprop_utils.GradTable is sums._GradTable
    """)


@pytest.mark.slow
def test_a_module_that_is_reloaded_and_chainer_imported_once_more_are_mended():
    _run("""
        import importlib, sys
        import chainer, numpy, mixprec
        from chainer.functions.loss import vae
        from chainer.functions.math import fix
        mended = sys.modules["chainer.functions.math.fix"]
        for module, name in ((mended, "fix"), (vae, "gaussian_nll")):
            before = getattr(module, name)
            importlib.reload(module)
            after = getattr(module, name)
            assert after is not before
            assert after.__code__.co_filename == before.__code__.co_filename
            assert type(after.__globals__.get("backend")) is type(before.__globals__.get("backend"))
        mixprec.convert(chainer.links.Linear(2, 2))
        relu = importlib.reload(sys.modules["chainer.functions.activation.relu"])
        mixprec.convert(chainer.links.Linear(2, 2))
        assert relu.ReLU.forward_cpu.__wrapped__

        for name in [name for name in sys.modules if name.partition(".")[0] == "chainer"]:
            del sys.modules[name]
        sys.modules["numpy.distutils"] = sys.modules["pkg_resources"] = None  # as on Python 3.12
        import chainer
        assert sys.modules["chainer._environment_check"].__doc__ == "Replaced by mixprec.compat."
    """)


@pytest.mark.slow
def test_the_import_hook_replaces_the_same_and_all_of_it_can_be_taken_back():
    """Right after a module was executed, and so before others import from it."""
    code = """
        import json, sys, types
        import chainer
        from mixprec.compat import registry
        from tests.attributes import import_everything, keys_of, snapshot
        import_everything()
        print(json.dumps(sorted(keys_of(registry.replaced(), snapshot()))))
        places = list(registry.replaced())
        registry.undo()
        for owner, name in places:
            function = owner and vars(owner).get(name)
            if isinstance(function, types.FunctionType):
                assert function.__globals__ is vars(sys.modules[function.__module__]), (owner, name)
                assert function.__code__.co_filename.startswith((*chainer.__path__, *sys.modules["chainermn"].__path__))
    """
    hooked, late = ({tuple(key) for key in json.loads(_run(*parts))} for parts in ([code], [PLAIN, COMPARE]))
    name = "_environment_check"
    assert hooked - {("sys.modules", f"chainer.{name}"), ("chainer", name)} == late
    assert len(late) > 80


@pytest.mark.slow
def test_only_the_registry_assigns_to_attributes_of_other_libraries():
    """Also in code that needs a GPU: no ``chainer.Link.serialize = ...`` in any module."""
    for path in (ROOT / "mixprec").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imports = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
        foreign = [node for node in imports if not (getattr(node, "module", "") or "").startswith("mixprec")]
        names = {(alias.asname or alias.name).partition(".")[0] for node in foreign for alias in node.names}
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
                root = node
                while isinstance(root, ast.Attribute):
                    root = root.value
                assert getattr(root, "id", "") not in names, f"{path}:{node.lineno}: {ast.unparse(node)}"


def test_entries_say_when_and_why_in_a_line():
    for patch in patches.entries():
        assert re.fullmatch(r"Without it .{20,110}\.", patch.why), patch.why
        assert patch.when
        assert patch.targets
    assert set(patches.entries()) == set(registry.patches())


def test_the_table_of_shims_has_a_row_for_each_file_that_declares_one():
    declaring = {patch.make.__module__ for patch in patches.entries() if "import" in patch.when}
    files = {module.removeprefix("mixprec.").removeprefix("compat.").replace(".", "/") for module in declaring}
    rows = re.findall(r"^\| `(\S+)` \|", (ROOT / "docs" / "compat.md").read_text(), re.MULTILINE)
    assert set(rows) == files


@pytest.mark.slow
def test_without_chainer_one_line_says_why_there_is_no_list():
    code = "import sys; sys.modules['chainer'] = None; from mixprec.app.commands import info\n"
    printed = _run(code, "sys.stderr = sys.stdout; print(info.main(['--patches']))")
    assert printed.startswith("error: the list needs Chainer: ")
    assert printed.splitlines()[1:] == ["1"]
