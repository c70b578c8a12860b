"""Run by the tests as a process of its own: one call of `train` or `evaluate` from JSON."""

import json
import sys

import torch

if __name__ == "__main__":
    torch.set_num_threads(1)
    from mintnet.data import load
    from mintnet.models import Flow
    from mintnet.training import Devices, evaluate, is_first_process, train

    call = json.loads(sys.argv[1])
    if call.pop("do", "train") == "evaluate":
        devices = Devices(call["devices"], accelerator="cpu")
        figures = evaluate(Flow.load(call["model"]), load("digits", "test"), devices=devices)
        figures = vars(figures)
    else:
        try:
            figures = train(accelerator="cpu", **call)
        except ValueError as error:
            print(error, file=sys.stderr)
            raise SystemExit(1) from None
    if is_first_process():
        print(json.dumps(figures))
