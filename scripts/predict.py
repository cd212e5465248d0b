"""Says what is on images: the five best classes of each: the command ``mixprec predict``.

python scripts/predict.py MODEL.onnx IMAGE ...
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mixprec.app.commands import main

if __name__ == "__main__":
    main.console("predict")
