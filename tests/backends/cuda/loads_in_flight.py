"""How many loads a thread of a kernel has under way, from what NVRTC makes of it for a GPU.

The main loop of a kernel is the first with loads of 16 bytes; those that come before an instruction that reads what one
of them brings are under way together.
"""

import functools
import itertools
import pathlib
import re
import shutil
import subprocess
import sysconfig
import tempfile
from typing import NamedTuple

from mixprec.backends import launch

# What files with macros of their own are compiled with: pairs of name and value, by file.
MACROS = {
    "batch_norm_apply": [
        tuple(zip(("ADD", "RELU", "MASK", "FACTORS"), of, strict=True))
        for of in ((0, 0, 0, 0), (0, 1, 0, 0), (1, 0, 0, 0), (1, 1, 0, 0), (1, 1, 1, 0), (1, 0, 0, 1), (1, 1, 1, 1))
    ],
    "batch_norm_backward": [
        (("OPENING", opening), ("PLUS", plus), ("FACTORS", factors))
        for opening, plus, factors in itertools.product(range(4), range(2), range(2))
        # Only in inference is an output looked at; factors are those of a batch with an addition.
        if (opening, plus) != (3, 1) and (not factors or opening in (0, 2))
    ],
    "batch_norm_dual": [(("RELU", relu),) for relu in range(2)],
    "batch_norm_dual_backward": [
        (("RELU", relu), ("PLUS", plus)) for relu, plus in itertools.product(range(2), range(2))
    ],
    "batch_norm_pooling": [()],
    "batch_norm_pooling_backward": [(("PLUS", plus),) for plus in range(2)],
}


class Loop(NamedTuple):
    """The main loop of a kernel.

    Attributes:
        loads: number of loads of 16 bytes in it.
        together: how many of them come before the first use of one.
        instructions: number of all instructions.
    """

    loads: int
    together: int
    instructions: int


@functools.cache
def disassembler():
    """Returns the path of ``nvdisasm``, or ``None``."""
    own = pathlib.Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "bin", "nvdisasm")
    return str(own) if own.exists() else shutil.which("nvdisasm")


def compiled(source, architecture):
    """Returns what NVRTC makes of a source, a cubin."""
    from cupy_backends.cuda.libs import nvrtc

    program = nvrtc.createProgram(source, "kernels.cu", [], [])
    nvrtc.compileProgram(program, [*launch.OPTIONS, f"-arch={architecture}"])
    return nvrtc.getCUBIN(program) + b"\0"  # CuPy takes the last byte away


def loops(cubin):
    """Returns the main :class:`Loop` of each kernel of a cubin by its name, of those that have one."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([disassembler(), "-c", file.name], capture_output=True, text=True, check=True).stdout
    _, *parts = re.split(r"^\s*\.text\.(\w+):$", text, flags=re.MULTILINE)
    found = {name: _main_loop(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}
    return {name: loop for name, loop in found.items() if loop}


def _main_loop(body):
    lines = re.findall(r"^\s*(\.L_\w+):|^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?(.*?);", body, re.MULTILINE)
    labels = {label: place for place, (label, _) in enumerate(lines) if label}
    for place, (_, instruction) in enumerate(lines):
        jump = re.match(r"BRA.*?(\.L_\w+)", instruction)
        start = labels.get(jump[1], place) if jump else place
        if start < place:
            inside = [instruction for _, instruction in lines[start:place] if instruction]
            loads = sum(map(_is_wide, inside))
            if loads:
                return Loop(loads, _together(inside), len(inside))
    return None


def _is_wide(instruction):
    return instruction.startswith("LDG") and ".128" in instruction.split()[0] and "STRONG" not in instruction


def _together(instructions):
    """Counts the wide loads before an instruction that reads a register to which one before it loads."""
    loaded, count = set(), 0
    for instruction in instructions:
        operation, _, operands = instruction.partition(" ")
        target, _, sources = operands.partition(",")
        read = operands if operation.startswith("ST") else sources
        if loaded & set(map(int, re.findall(r"\bR(\d+)", read))):
            break
        if operation.startswith("LDG"):
            first = int(re.search(r"R(\d+)", target)[1])
            words = 4 if ".128" in operation else 2 if ".64" in operation else 1
            loaded |= set(range(first, first + words))
            count += _is_wide(instruction)
    return count
