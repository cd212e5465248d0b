"""The registry of replaced attributes: each patch is applied once, in layers, and can be taken back alone."""

import functools
import sys
import threading
import types
from unittest import mock

import pytest

from mixprec.compat import registry
from mixprec.compat.registry import LEAVE, MISSING, Patch


@pytest.fixture(autouse=True)
def _declarations(monkeypatch):
    """Tests declare patches that are not in the list."""
    monkeypatch.setattr(registry, "_patches", [])
    monkeypatch.setattr(registry, "_layers", {})
    monkeypatch.setattr(registry, "_former", {})


@pytest.fixture
def library(monkeypatch):
    """A library of two modules, the second of which has imported the function of the first."""
    package, module = types.ModuleType("library"), types.ModuleType("library.functions")
    exec(
        "def shout(text):\n    return text.upper()\n\nclass Base:\n    def get(self):\n        return 1\n", vars(module)
    )
    module.Derived = type("Derived", (module.Base,), {})
    package.functions, package.shout = module, module.shout
    for each in (package, module):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    return package


def _adding(text):
    def make(original):
        @functools.wraps(original)
        def run(*args):
            return f"{original(*args)}{text}"

        return run

    return make


def _patch(target, make, when="now"):
    return Patch(target, make, "Without it nothing.", when)


def test_a_function_is_replaced_once_and_wherever_its_library_has_imported_it(library):
    original = library.shout
    patch = _patch("library.functions:shout", _adding("!"))
    assert not registry.replaced()
    patch.apply()
    patch.apply()
    assert set(registry.replaced().values()) == {(patch,)}
    assert library.functions.shout("a") == library.shout("a") == "A!"
    patch.undo()
    assert library.functions.shout is library.shout is original
    assert not registry.replaced()


def test_patches_of_one_attribute_lie_on_each_other_and_each_can_be_taken_back(library):
    original = library.shout
    one, two, three = (_patch("library.functions:shout", _adding(text)) for text in "123")
    for patch in (two, one, three, two):
        patch.apply()
    assert library.shout("a") == "A213"
    assert registry.replaced() == {(library.functions, "shout"): (two, one, three)}
    one.undo()
    assert library.shout("a") == "A23"
    one.apply()
    assert library.shout("a") == "A231"
    registry.undo()
    assert library.shout is original
    assert registry.replaced() == {}


def test_an_inherited_attribute_is_inherited_again(library):
    functions = library.functions
    patch = _patch("library.functions:Derived.get", _adding("!"))
    patch.apply()
    assert (functions.Base().get(), functions.Derived().get()) == (1, "1!")
    patch.undo()
    assert "get" not in vars(functions.Derived)


def test_an_attribute_that_was_missing_is_missing_again(library):
    seen = []
    patch = _patch("library.functions:shout.loud", lambda original: seen.append(original) or True)
    with patch.applied():
        assert library.shout.loud
    assert seen == [MISSING]
    assert not hasattr(library.shout, "loud")


def test_what_a_patch_leaves_is_not_replaced(library):
    patch = _patch("library.functions:shout", lambda original: LEAVE)
    patch.apply()
    assert registry.replaced() == {}
    patch.undo()
    assert library.shout("a") == "A"


@pytest.mark.parametrize("there", [True, False])
def test_a_module_is_found_by_import(library, monkeypatch, there):
    before = types.ModuleType("library.cudnn")
    if there:
        monkeypatch.setitem(sys.modules, "library.cudnn", before)
        library.cudnn = before
    patch = _patch("library.cudnn", lambda original: types.ModuleType("stand_in"))
    with patch.applied():
        import library.cudnn as found

        assert found.__name__ == library.cudnn.__name__ == "stand_in"
    assert sys.modules.get("library.cudnn") is (before if there else None)
    assert getattr(library, "cudnn", None) is (before if there else None)


def test_only_the_targets_of_the_module_that_was_imported_are_replaced(library):
    patch = _patch(["library.functions:{shout,Base.get}", "library.to_come:shout"], _adding("!"))
    patch.apply("library.functions")
    assert library.shout("a") == "A!"
    assert library.functions.Base().get() == "1!"


def test_a_pattern_is_applied_to_what_is_found(library):
    patch = _patch("library.*:*.get", _adding("!"))
    patch.apply()
    assert registry.replaced() == {}
    for _ in range(2):
        patch.apply_to(library.functions.Base, "get")
    assert library.functions.Base().get() == "1!"
    patch.undo()
    assert library.functions.Base().get() == 1


def test_blocks_in_several_threads_end_with_the_last(library):
    patch = _patch("library.functions:shout", _adding("!"))
    inside, go_on = threading.Event(), threading.Event()

    def block():
        with patch.applied():
            inside.set()
            go_on.wait(10)

    thread = threading.Thread(target=block)
    thread.start()
    assert inside.wait(10)
    with patch.applied():
        assert library.shout("a") == "A!"
    assert library.shout("a") == "A!"
    go_on.set()
    thread.join()
    assert library.shout("a") == "A"


def test_a_patch_under_another_one_may_end_first(library):
    """As when a model is converted in a step that capture watches."""
    watching, converting = (_patch("library.functions:shout", _adding(text)) for text in "12")
    with watching.applied():
        converting.apply()
        assert library.shout("a") == "A12"
    assert library.shout("a") == "A2"


def test_what_other_code_took_off_is_put_back(library):
    """At the end of ``mock.patch`` and pytest's ``monkeypatch``, or by hand."""
    original = library.functions.shout
    one, two = (_patch("library.functions:shout", _adding(text)) for text in "12")
    with mock.patch.object(library.functions, "shout", original):
        one.apply()
        two.apply()
    assert library.functions.shout is original
    assert registry.replaced() == {}
    two.apply()  # that of the other patch, too
    assert library.functions.shout("a") == library.shout("a") == "A12"
    registry.undo()
    assert library.functions.shout is library.shout is original


def test_a_replacement_lies_on_what_other_code_has_put_there_and_comes_back_with_it(library):
    original = library.functions.shout
    patch = _patch("library.functions:shout", _adding("!"))
    patch.apply()
    replacement = library.functions.shout
    for _ in range(3):  # and no deeper each time
        with mock.patch.object(library.functions, "shout", str.lower):
            assert registry.replaced() == {}
            patch.apply()
            assert library.functions.shout("A") == "a!"
        patch.apply()
        assert library.functions.shout is library.shout is replacement
    with mock.patch.object(library.functions, "shout", str.lower):
        patch.undo()
        assert library.functions.shout is str.lower
    patch.undo()
    assert library.functions.shout is library.shout is original


_SPIES = [
    lambda function: functools.wraps(function)(lambda text: "".join([function(text)])),
    lambda function: lambda text: function(text),
    lambda function: functools.partial(function),
    lambda function: mock.Mock(wraps=function),
    lambda function: staticmethod(function),
]


@pytest.mark.parametrize("spy", _SPIES)
def test_a_wrapper_around_a_replacement_stays_and_so_does_the_replacement(library, spy):
    one, two = (_patch("library.functions:shout", _adding(text)) for text in "12")
    original = library.functions.shout
    one.apply()
    replacement = library.functions.shout
    wrapper = library.functions.shout = spy(replacement)
    one.apply()
    assert library.functions.shout is wrapper
    two.apply()
    assert library.functions.shout("a") == "A12"
    one.undo()  # it is under the wrapper
    assert library.functions.shout("a") == "A12"
    registry.undo()
    assert library.functions.shout is wrapper
    assert wrapper("a") == "A1"
    assert registry.replaced() == {(library.functions, "shout"): (one,)}
    library.functions.shout = replacement
    registry.undo()
    assert library.functions.shout is original


def test_a_module_that_was_dropped_is_put_back(library):
    patch = _patch("library.cudnn", lambda original: types.ModuleType("stand_in"))
    patch.apply()
    del sys.modules["library.cudnn"]
    patch.apply()
    assert sys.modules["library.cudnn"].__name__ == "stand_in"
    del sys.modules["library.cudnn"]
    patch.undo()
    assert "library.cudnn" not in sys.modules


def test_a_method_that_is_assigned_anew_is_replaced_too(library):
    base = library.functions.Base
    patch = _patch("library.*:*.get", _adding("!"))
    patch.apply_to(base, "get")
    base.get = lambda self: 2
    patch.apply_to(base, "get")
    assert base().get() == "2!"
    patch.undo()
    assert base().get() == 2


def test_an_attribute_that_does_not_exist_is_an_error(library):
    with pytest.raises(AttributeError, match="Missing"):
        _patch("library.functions:Missing.get", _adding("!")).apply()
    with pytest.raises(ModuleNotFoundError):
        _patch("library.missing:get", _adding("!")).apply()


def test_examples_of_the_docstrings_run():
    import doctest

    assert doctest.testmod(registry).attempted
    assert not doctest.testmod(registry).failed
