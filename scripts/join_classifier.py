"""Make a model folder of the pieces that train_classifier_gpu.py wrote.

python scripts/join_classifier.py out/mnist-classifier models/mnist-classifier
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from safetensors.torch import load_file, save_file

from mintnet.models import Classifier, ClassifierConfig, Pixels, ResNet, ResNetConfig
from mintnet.models.storage import WEIGHTS, load_packed_state

KINDS = {"classifier": (Classifier, ClassifierConfig), "resnet": (ResNet, ResNetConfig)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pieces", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    record = json.loads((args.pieces / "record.json").read_text())
    config = record["config"]
    kind, shape = KINDS[config["kind"]]
    model = kind(shape(**config["net"]), Pixels(**config["pixels"]), config["classes"])
    state = {}
    for piece in sorted(args.pieces.glob("weights-*.safetensors")):
        state |= load_file(piece)
    load_packed_state(model, state, str(args.pieces))
    name = record["arguments"]["preset"].partition("-")[0]
    model.save(args.out, preset=record["arguments"]["preset"], data={"name": name})
    save_file(state, args.out / WEIGHTS)  # as they were stored: half precision stays half
    print(f"{args.out}: {sum(t.nbytes for t in state.values()) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
