"""Compiles the native library, and puts a .pth file beside the package; everything else is in setup.cfg.

Without a compiler, or on another processor than x86-64, the native library is left out: see mixprec/native/__init__.py.

The .pth file goes into wheels and editable installs. Every interpreter of the environment, also a worker started by
forkserver or spawn, can then import Chainer: see mixprec/startup.py. It is installed by the command for headers, as
editable installs run this command, too.
"""

import concurrent.futures
import glob
import itertools
import platform
import runpy
import sys

from setuptools import Extension, setup  # isort: skip (it brings distutils)
from distutils.command.install_headers import install_headers

from setuptools.command.build_ext import build_ext

FOLDER = "mixprec/native"
SOURCE = f"{FOLDER}/source"
FLAGS = "-std=c++17 -O3 -g0 -fvisibility=hidden -ffp-contract=off -fno-math-errno -fno-exceptions -fno-rtti -pthread"
# For the files that are compiled for an instruction set. g++ 12 warns of its own header for AVX-512; clang 14 does not
# know one of these warnings.
AVX2 = "-mavx2 -mfma -mf16c"
QUIET = "-Wno-unknown-warning-option -Wno-uninitialized -Wno-maybe-uninitialized"
AVX512 = f"{AVX2} -mavx512f -mavx512bw -mavx512vl -mavx512dq {QUIET}"
SETS = {
    f"{SOURCE}/avx2.cpp": AVX2.split(),
    f"{SOURCE}/avx512.cpp": AVX512.split(),
    f"{SOURCE}/avx512bf16.cpp": [*AVX512.split(), "-mavx512bf16"],
}
# One library is for 3.11 and later: the limited API has buffers from there on.
LIMITED = [("Py_LIMITED_API", "0x030B0000")] if sys.version_info >= (3, 11) else []
LIBRARY = Extension(
    f"{FOLDER}/_library".replace("/", "."),
    sources=sorted(glob.glob(f"{SOURCE}/*.cpp")),
    depends=["setup.py", f"{FOLDER}/sources.py", *sorted(glob.glob(f"{SOURCE}/*.h") + glob.glob(f"{SOURCE}/*.inl"))],
    define_macros=[("SOURCES", '"' + runpy.run_path(f"{FOLDER}/sources.py")["digest"]() + '"'), *LIMITED],
    py_limited_api=bool(LIMITED),
    extra_compile_args=FLAGS.split(),
    extra_link_args=["-pthread"],
    optional=True,
)


class BuildLibrary(build_ext):
    """Compiles the sources side by side, each with the flags of its instruction set."""

    def build_extension(self, extension):
        compile_in_turn = self.compiler.compile

        def compile_all(sources, extra_postargs=(), **options):
            def of_one(source):
                return compile_in_turn([source], extra_postargs=[*extra_postargs, *SETS.get(source, [])], **options)

            with concurrent.futures.ThreadPoolExecutor() as pool:
                return list(itertools.chain.from_iterable(pool.map(of_one, sources)))

        self.compiler.compile = compile_all
        super().build_extension(extension)


class InstallStartup(install_headers):
    def run(self):
        library = self.get_finalized_command("install").install_lib
        self.outfiles = [self.copy_file("mixprec/startup.pth", f"{library}/mixprec_startup.pth")[0]]


setup(
    ext_modules=[LIBRARY] if platform.machine() in ("x86_64", "AMD64") else [],
    headers=["mixprec/startup.pth"],
    cmdclass={"build_ext": BuildLibrary, "install_headers": InstallStartup},
)
