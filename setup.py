"""Compiles the native library, and puts a .pth file beside the package; all else stands in setup.cfg.

Where there is no compiler, or another processor than x86-64, the native library is left out: see
mixprec/native/__init__.py.

The .pth file goes into wheels and editable installs. Every interpreter of the environment, also a worker started by
forkserver or spawn, can then import Chainer: see mixprec/startup.py. Of the commands of an installation, that of
headers is the one that editable installs run too.
"""

import glob
import platform

from setuptools import Extension, setup  # isort: skip (it brings distutils)
from distutils.command.install_headers import install_headers

SOURCE = "mixprec/native/source"
FLAGS = "-std=c++17 -O3 -g0 -fvisibility=hidden -ffp-contract=off -fno-math-errno -fno-exceptions -fno-rtti -pthread"
LIBRARY = Extension(
    "mixprec.native._library",
    sources=sorted(glob.glob(f"{SOURCE}/*.cpp")),
    depends=sorted(glob.glob(f"{SOURCE}/*.h") + glob.glob(f"{SOURCE}/*.inl")),
    extra_compile_args=FLAGS.split(),
    extra_link_args=["-pthread"],
    optional=True,
)


class InstallStartup(install_headers):
    def run(self):
        library = self.get_finalized_command("install").install_lib
        self.outfiles = [self.copy_file("mixprec/startup.pth", f"{library}/mixprec_startup.pth")[0]]


setup(
    ext_modules=[LIBRARY] if platform.machine() in ("x86_64", "AMD64") else [],
    headers=["mixprec/startup.pth"],
    cmdclass={"install_headers": InstallStartup},
)
