"""The monitor, and training, in processes of their own."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).parents[3]
TOKEN = "token-of-the-tests"
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def free_port():
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return tried.getsockname()[1]


class Server:
    """The monitor in a process of its own.

    Args:
        results: folder with results.
        options: more arguments.
        descriptors: number of them that it may have.
        redirected: what the shell does with its standard streams, as ``>&-``.
        environment: dict of what it has besides the usual; the token, if none is given.
    """

    def __init__(self, results, *options, descriptors=None, redirected="", environment=None):
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "mixprec", "monitor", str(results), "--port", str(self.port), *options]
        limited = "" if descriptors is None else f"ulimit -n {descriptors};"
        command = ["bash", "-c", f'{limited} exec "$@" {redirected}', "bash", *command]
        usual = {key: value for key, value in ENV.items() if not key.startswith(("PYTEST", "NICEGUI"))}
        more = {"MIXPREC_MONITOR_TOKEN": TOKEN} if environment is None else environment
        self.process = subprocess.Popen(
            command, cwd=ROOT, env={**usual, **more}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def __enter__(self):
        for _ in range(600):
            try:
                with urllib.request.urlopen(self.address, timeout=60):
                    return self
            except urllib.error.HTTPError as error:
                error.close()
                return self  # it wants the token
            except OSError:
                if self.process.poll() is not None:
                    raise AssertionError(self.process.communicate()[0]) from None
                time.sleep(0.1)
        self.process.kill()
        raise AssertionError(self.process.communicate()[0])

    def __exit__(self, *error):
        self.end(signal.SIGINT)

    def end(self, number):
        """Sends a signal and waits until the process has ended."""
        self.process.send_signal(number)
        self.printed, _ = self.process.communicate(timeout=60)

    def memory(self):
        """Returns the resident memory in MB."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1000


def train(out, images, *settings):
    command = [sys.executable, "-m", "mixprec", "train", "--config", "digits.yaml", "--out", str(out)]
    chosen = [f"data.train={images}/train", f"data.val={images}/val", *settings]
    arguments = [argument for setting in chosen for argument in ("--set", setting)]
    done = subprocess.run([*command, *arguments], cwd=ROOT, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
