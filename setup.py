"""Compiles the native library, puts a .pth file beside the package, and fits README.md for an index of packages.

Everything else is in setup.cfg. MIXPREC_URL is the public address of the repository, which `make release URL=...` hands
on: the metadata get links to it.

Without a compiler, or on another processor than x86-64, the native library is left out: see mixprec/native/__init__.py.

The .pth file goes into wheels and editable installs. Every interpreter of the environment, also a worker started by
forkserver or spawn, can then import Chainer: see mixprec/startup.py. It is installed by the command for headers, as
editable installs run this command, too.
"""

import concurrent.futures
import glob
import itertools
import os
import pathlib
import platform
import re
import runpy
import sys
import sysconfig

from setuptools import Extension, setup  # isort: skip (it brings distutils)
from distutils.command.install_headers import install_headers
from distutils.errors import CompileError

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
    f"{SOURCE}/amx.cpp": [*AVX512.split(), "-mavx512bf16"],
}
MAY_FAIL = {f"{SOURCE}/amx.cpp"}  # assemblers before 2021 do not know AMX: the library does without this file
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
                try:
                    return compile_in_turn([source], extra_postargs=[*extra_postargs, *SETS.get(source, [])], **options)
                except CompileError:
                    if source not in MAY_FAIL:
                        raise
                    print(f"{source} does not compile: the native library does without it", file=sys.stderr)
                    return []

            with concurrent.futures.ThreadPoolExecutor() as pool:
                return list(itertools.chain.from_iterable(pool.map(of_one, sources)))

        self.compiler.compile = compile_all
        super().build_extension(extension)

    def copy_extensions_to_source(self):
        super().copy_extensions_to_source()
        if LIMITED:  # earlier versions made a library for one Python alone, which that Python would go on importing
            pathlib.Path(f"{FOLDER}/_library{sysconfig.get_config_var('EXT_SUFFIX')}").unlink(missing_ok=True)


class InstallStartup(install_headers):
    def run(self):
        library = self.get_finalized_command("install").install_lib
        self.outfiles = [self.copy_file("mixprec/startup.pth", f"{library}/mixprec_startup.pth")[0]]


def description(readme, url, version):
    """Returns the text of README.md without relative links, which lead nowhere on an index of packages.

    With a URL they lead to the files of that version; without one the text of a link stays.
    """

    def link(match):
        is_image, text, target = match.groups()
        if not url:
            return text
        return f"{is_image}[{text}]({url}/{'raw' if is_image else 'blob'}/v{version}/{target})"

    parts = re.split(r"(^```.*?^```$)", readme, flags=re.MULTILINE | re.DOTALL)  # every second one is a fenced block
    parts[::2] = (re.sub(r"(!?)\[([^\[\]]*)\]\((?![a-z]+:|#)([^()\s]+)\)", link, part) for part in parts[::2])
    return "".join(parts)


def links(url):
    """Returns the addresses of the metadata."""
    own = {"Source": url, "Documentation": f"{url}/tree/HEAD/docs", "Issues": f"{url}/issues"} if url else {}
    return {**own, "Chainer": "https://chainer.org"}


URL = os.environ.get("MIXPREC_URL", "").rstrip("/")
VERSION = re.search(r"^version = (.*)$", pathlib.Path("setup.cfg").read_text(encoding="utf-8"), re.MULTILINE)[1]
setup(
    long_description=description(pathlib.Path("README.md").read_text(encoding="utf-8"), URL, VERSION),
    project_urls=links(URL),
    ext_modules=[LIBRARY] if platform.machine() in ("x86_64", "AMD64") else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIMITED else {},
    headers=["mixprec/startup.pth"],
    cmdclass={"build_ext": BuildLibrary, "install_headers": InstallStartup},
)
