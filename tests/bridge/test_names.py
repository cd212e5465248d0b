"""Every name that Chainer's and ChainerMN's sources read from ``cupy.cudnn`` and ``cupy.cuda.cudnn`` is there.

The sources are walked, so that a name in a branch that no test reaches is found too. Of calls, the number of positional
arguments and the names of the others have to fit.
"""

import ast
import collections
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

from mixprec.bridge import constants, functions, not_bridged

FUNCTIONS, CONSTANTS = "cupy.cudnn", "cupy.cuda.cudnn"
HOMES = {FUNCTIONS: functions, CONSTANTS: constants}

# The same thing under the names that Chainer gives it; the first that fits.
ALIASES = {
    "chainer.cuda": "chainer.backends.cuda",
    "chainer.backends.cuda.cudnn": FUNCTIONS,
    "chainer.backends.cuda.libcudnn": CONSTANTS,
    "chainer.backends.cuda.cupy": "cupy",
    "chainer.backends.cuda.cuda": "cupy.cuda",
}

# Modules that mixprec.bridge.branches has take other branches.
BRANCHES_NOT_TAKEN = {
    "chainer.functions.array.spatial_transformer_grid",
    "chainer.functions.array.spatial_transformer_sampler",
    "chainer.functions.rnn.n_step_rnn",
}

Read = collections.namedtuple("Read", "module line home name call")


def canonical(path):
    """A dotted path with the names that CuPy has for what is CuPy's."""
    for alias, real in ALIASES.items():
        if path == alias or path.startswith(alias + "."):
            return canonical(real + path[len(alias) :])
    return path


def path_of(node, names):
    """The dotted path of a chain of attributes; ``None`` if it begins with anything but a name that is known."""
    if isinstance(node, ast.Attribute):
        before = path_of(node.value, names)
        return before and canonical(f"{before}.{node.attr}")
    return names.get(node.id) if isinstance(node, ast.Name) else None


def names_in(tree):
    """What each name that a module binds by an import, or to a module of cuDNN, stands for."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                names[name] = canonical(alias.name if alias.asname else name)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = canonical(f"{node.module}.{alias.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            path = path_of(node.value, names)
            if path in HOMES:
                names[node.targets[0].id] = path
    return names


def sources():
    """``(name of the module, text)`` of everything in the two packages."""
    for package in ("chainer", "chainermn"):
        folder = Path(importlib.util.find_spec(package).origin).parent
        for path in sorted(folder.rglob("*.py")):
            name = ".".join([package, *path.relative_to(folder).with_suffix("").parts])
            yield name, path.read_text(encoding="utf-8")


def reads_in(module, text):
    """All that a module reads from the two, and the lines of what looks like it and is not understood."""
    tree = ast.parse(text)
    names = names_in(tree)
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found, odd = [], []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        value, home = node.value, path_of(node.value, names)
        if home in HOMES:
            found.append(Read(module, node.lineno, home, node.attr, calls.get(id(node))))
        elif getattr(value, "attr", getattr(value, "id", "")) in ("cudnn", "libcudnn"):
            odd.append((module, node.lineno, ast.unparse(node)))
    return found, odd


def walk():
    """``(reads, odd lines)`` of all modules."""
    reads, odd = [], []
    for module, text in sources():
        if "cudnn" in text:
            more = reads_in(module, text)
            reads += more[0]
            odd += more[1]
    return reads, odd


READS, ODD = walk()
CALLS = [read for read in READS if read.call is not None and read.home == FUNCTIONS]


def is_bridged(read):
    """Whether the name is neither refused nor one of cuDNN's C functions."""
    if read.home == CONSTANTS:
        return read.name.startswith("CUDNN_") or read.name == "getVersion"
    return getattr(functions, read.name, None) not in vars(not_bridged).values()


def test_the_walk_understands_all_that_it_sees():
    assert ODD == []


def test_the_walk_finds_what_a_search_finds():
    """In lines without comments; `cudnn.h` is a file."""
    searched = set()
    for _, text in sources():
        for line in text.splitlines():
            searched |= set(re.findall(r"\b(?:lib)?cudnn\.([A-Za-z]\w*)", line.partition("#")[0]))
    found = {read.name for read in READS}
    assert searched - {"h"} <= found | set(HOMES)
    assert found >= {"convolution_forward", "CUDNN_BN_MIN_EPSILON", "create_spatial_transformer_descriptor"}
    assert len(found) > 50
    assert len(CALLS) > 40


def test_all_names_are_there():
    assert [read for read in READS if is_bridged(read) and not hasattr(HOMES[read.home], read.name)] == []


def test_what_is_not_bridged_stands_only_in_branches_that_are_not_taken():
    """Such a name is there too if it is one of ``cupy.cudnn``, and says that it is not bridged."""
    refused = [read for read in READS if not is_bridged(read)]
    assert {read.module for read in refused} == BRANCHES_NOT_TAKEN
    for read in refused:
        if read.home == FUNCTIONS:
            with pytest.raises(Exception, match=f"{read.name} is not bridged") as error:
                getattr(functions, read.name)()
            assert "\n" not in str(error.value)


def fits(call, function, itself=0):
    """Binds the arguments of a call as it is written; raises TypeError where that fails.

    Args:
        call: the call's node.
        function: what is called.
        itself: 1 for a method, which gets its object as well.
    """
    assert not any(isinstance(argument, ast.Starred) for argument in call.args), ast.unparse(call)
    assert all(keyword.arg for keyword in call.keywords), ast.unparse(call)
    given = {keyword.arg: None for keyword in call.keywords}
    inspect.signature(function).bind(*[None] * (itself + len(call.args)), **given)


def test_all_calls_fit():
    for read in CALLS:
        fits(read.call, getattr(functions, read.name))


def test_calls_of_dropout_states_fit():
    """Of methods of what ``cuda.get_cudnn_dropout_states()`` returns; functions of RNN call it ``states``."""
    called = set()
    for _, text in sources():
        if "get_cudnn_dropout_states" in text:
            for node in ast.walk(ast.parse(text)):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                if ast.unparse(node.func.value) in ("cuda.get_cudnn_dropout_states()", "states"):
                    fits(node, getattr(functions.DropoutStates, node.func.attr), itself=1)
                    called.add(node.func.attr)
    assert called == {"forward", "backward", "set_dropout_ratio"}
