"""The start-up hook: Chainer can be imported in every interpreter of the environment, workers included."""

import multiprocessing
import subprocess
import sys
import textwrap
import types

import chainer
import chainer.links as L
import numpy as np
import pytest

from mixprec import startup
from tests.cases import first

WORKER_TIMEOUT = 100  # seconds; a worker that cannot import Chainer otherwise hangs its parent


def run_python(code, *options, env=None):
    """Runs ``code`` in a fresh interpreter and returns its standard output; standard error must be empty."""
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=WORKER_TIMEOUT,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    "imports", first(2, ["import chainer", "import mixprec, chainer", "import chainer, mixprec", "import chainermn"])
)
def test_chainer_imports_silently_in_any_order(imports):
    """No output and no warning, which -W error would turn into an exception."""
    assert run_python(imports, "-W", "error") == ""


@pytest.mark.parametrize("module", first(1, ["chainer.testing", "chainer.gradient_check"]))
def test_modules_that_want_pkg_resources_import_silently(module):
    assert run_python(f"import {module}", "-W", "error") == ""


@pytest.mark.slow
def test_chainer_imports_where_pkg_resources_is_missing():
    """As setuptools 82 and later leave it."""
    run_python("import sys; sys.modules['pkg_resources'] = None; import chainer.testing", "-W", "error")


def test_importing_chainer_leaves_numpy_and_pkg_resources_as_they_were():
    code = """
        import sys, numpy
        names = set(dir(numpy))
        import chainer, chainer.testing
        new = set(dir(numpy)) - names
        print(sorted(name for name in new if not isinstance(getattr(numpy, name), type(sys))))
        print("pkg_resources" in sys.modules)
    """
    assert run_python(code).split() == ["[]", "False"]


@pytest.mark.parametrize("statement", ["pass", "import mixprec"])
def test_neither_a_bare_interpreter_nor_mixprec_imports_anything_heavy(statement):
    code = f"""
        import sys
        {statement}
        heavy = ["numpy", "chainer", "chainermn", "cupy", "nvidia", "matplotlib", "PIL", "yaml", "mixprec.compat"]
        print([name for name in heavy if name in sys.modules])
    """
    assert run_python(code).strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_worker_started_from_pytest_unpickles_chainer_objects(method, tmp_path):
    """The worker imports nothing but what it unpickles: a function of Chainer and a link."""
    link = L.Linear(3, 2)
    path = tmp_path / "link.npz"
    context = multiprocessing.get_context(method)
    worker = context.Process(target=chainer.serializers.save_npz, args=(str(path), link))
    worker.start()
    worker.join(WORKER_TIMEOUT)
    hung = worker.is_alive()
    if hung:
        worker.kill()
        worker.join()
    assert not hung
    assert worker.exitcode == 0
    with np.load(path) as saved:
        np.testing.assert_array_equal(saved["W"], link.W.array)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_worker_of_a_parent_without_a_main_file_unpickles_chainer_objects(method):
    """The parent, `python -c`, imports Chainer first; no script runs again in the worker that could import a shim."""
    code = f"""
        import chainer, multiprocessing
        with multiprocessing.get_context("{method}").Pool(1) as pool:
            result = pool.apply_async(chainer.links.Linear(3, 2).count_params)
            print(result.get({WORKER_TIMEOUT - 20}))
    """
    assert run_python(code).strip() == "8"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_multiprocess_iterator_hands_over_chainer_data_sets(method):
    code = f"""
        import multiprocessing
        multiprocessing.set_start_method("{method}")
        import chainer, numpy
        data = chainer.datasets.TupleDataset(numpy.arange(6), numpy.arange(6) ** 2)
        iterator = chainer.iterators.MultiprocessIterator(data, 3, repeat=False, shuffle=False, n_processes=1)
        print([int(y) for batch in iterator for x, y in batch])
        iterator.finalize()
    """
    assert run_python(code).strip() == "[0, 1, 4, 9, 16, 25]"


def test_finder_is_registered_once():
    startup.register()
    startup.register()
    assert sum(isinstance(finder, startup._ChainerFinder) for finder in sys.meta_path) == 1


def test_finder_leaves_every_other_module_alone():
    finder = startup._ChainerFinder()
    assert finder.find_spec("chainercv") is None
    assert finder.find_spec("numpy") is None
    assert finder.find_spec("chainer.no_such_module") is None


def test_shims_are_withdrawn_when_the_import_fails(monkeypatch):
    class Loader:
        def create_module(self, spec):
            return None

        def exec_module(self, module):
            assert "pkg_resources" in sys.modules
            raise ImportError("broken")

    monkeypatch.delitem(sys.modules, "pkg_resources", raising=False)
    module = types.ModuleType("chainer.testing.helper")
    module.__spec__ = types.SimpleNamespace(loader=None)
    with pytest.raises(ImportError, match="broken"):
        startup._ShimmedLoader(Loader()).exec_module(module)
    assert "pkg_resources" not in sys.modules


@pytest.mark.slow
def test_chainer_that_was_loaded_before_is_mended_by_import_mixprec():
    """In an interpreter without the .pth file and with a shim of the user's."""
    code = """
        import sys, types
        sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != "mixprec.startup"]
        for name in [name for name in sys.modules if name.startswith("mixprec")]:
            del sys.modules[name]
        import numpy
        stub = types.ModuleType("chainer._environment_check")
        stub.check = lambda: None
        sys.modules[stub.__name__] = stub
        numpy.sctypes = {"int": [numpy.int32, numpy.int64], "float": []}
        import chainer
        def mean():
            total = chainer.reporter.Summary()
            for _ in range(10_000):
                total.add(numpy.float16(2.5))
            return float(total.compute_mean())
        alone = mean()
        import mixprec
        print(alone, mean())
    """
    alone, mended = map(float, run_python(code, "-W", "ignore").split())
    assert alone < 1
    assert mended == 2.5


def test_every_shimmed_module_exists_and_every_shim_says_what_breaks():
    """A typo in a module's name would make a shim that never runs."""
    import importlib.util

    from mixprec.compat import hooks, registry

    for name in hooks.names():
        assert importlib.util.find_spec(name) or name == "chainer._environment_check", name
    for patch in registry.patches():
        assert patch.why.startswith("Without it ")
        assert patch.why.endswith(".")
