"""One task of the monitor: JSON from standard input, lines of JSON on standard output.

python -m mixprec.app.monitor.work TASK < REQUEST.json
"""

import os
import sys

from mixprec.base import standard_streams

if __name__ == "__main__":
    standard_streams.guard()  # before a file is opened

from mixprec.app.monitor.work import serving
from mixprec.app.monitor.work.tasks import TASKS

if __name__ == "__main__":
    os.nice(10)  # training on this machine has priority
    sys.exit(serving.main(sys.argv[1:], TASKS))
