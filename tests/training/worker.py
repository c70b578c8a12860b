"""Run by the tests as a process of its own: one call of `train` or `evaluate` from JSON."""

import json
import sys

import torch

if __name__ == "__main__":
    torch.set_num_threads(1)
    from mintnet.data import load
    from mintnet.models.locate import load_flow
    from mintnet.training import Cadence, Devices, evaluate, train
    from mintnet.training.devices import is_first_process

    call = json.loads(sys.argv[1])
    devices = Devices(call.pop("devices", None), accelerator="cpu")
    if call.pop("do", "train") == "evaluate":
        result = evaluate(load_flow(call["model"]), load("digits", "test"), devices=devices)
        figures = result.to_dict()
    else:
        cadence = Cadence(**call.pop("cadence", {}))
        try:
            figures = train(devices=devices, cadence=cadence, **call)
        except ValueError as error:
            print(error, file=sys.stderr)
            raise SystemExit(1) from None
    if is_first_process():
        print(json.dumps(figures))
