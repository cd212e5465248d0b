"""Puts a .pth file beside the package, in wheels and editable installs; all else stands in setup.cfg.

Every interpreter of the environment, also a worker started by forkserver or spawn, can then import Chainer: see
mixprec/startup.py. Of the commands of an installation, that of headers is the one that editable installs run too.
"""

from setuptools import setup  # isort: skip (it brings distutils)
from distutils.command.install_headers import install_headers


class InstallStartup(install_headers):
    def run(self):
        library = self.get_finalized_command("install").install_lib
        self.outfiles = [self.copy_file("mixprec/startup.pth", f"{library}/mixprec_startup.pth")[0]]


setup(headers=["mixprec/startup.pth"], cmdclass={"install_headers": InstallStartup})
