"""Train a density model on one GPU for a given time, from scratch or from saved weights.

    python scripts/train_gpu.py cifar10 --data data --out out --minutes 9 --start out/part-0

One step (dequantization, forward, backward, clipping, AMSGrad, moving average) is captured in
one CUDA graph. Weights are written as they go, in pieces of at most 15 MB with the masked entries
left out; a later run picks them up with --start. Moments of the optimizer are not kept: a run
that continues warms up again, which its log says.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from mintnet.data import load
from mintnet.models import Flow
from mintnet.models.fast import fast_transform
from mintnet.models.storage import load_packed_state, packed_state

PIECE = 15_000_000


def save_pieces(flow: Flow, folder: Path, record: dict) -> None:
    """Weights in files of at most PIECE bytes, and the record of the run so far."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces, size = [{}], 0
    for name, tensor in packed_state(flow).items():
        if size + tensor.nbytes > PIECE and pieces[-1]:
            pieces.append({})
            size = 0
        pieces[-1][name] = tensor
        size += tensor.nbytes
    for number, piece in enumerate(pieces):
        save_file(piece, folder / f"weights-{number}.safetensors")
    config = {
        "net": flow.net.config.to_dict(),
        "logit_lambda": flow.logit.lam,
        "levels": flow.levels,
    }
    (folder / "record.json").write_text(json.dumps({"config": config, **record}, indent=1))


def load_pieces(flow: Flow, folder: Path) -> dict:
    """The reverse; returns the record."""
    state: dict[str, torch.Tensor] = {}
    for piece in sorted(folder.glob("weights-*.safetensors")):
        state |= load_file(piece)
    load_packed_state(flow, state, str(folder))
    return json.loads((folder / "record.json").read_text())


def learning_rate(step: int, seconds: float, args: argparse.Namespace) -> float:
    """Linear warm-up, constant, then linear decay to 2 % over the last share of the time."""
    warm = min(1.0, (step + 1) / args.warm_up)
    progress = seconds / (60 * args.minutes)
    decay = 1.0
    if args.decay > 0 and progress > 1 - args.decay:
        decay = max(0.02, (1 - progress) / args.decay)
    return args.lr * warm * decay


class Step:
    """One optimizer step as a CUDA graph."""

    def __init__(self, flow: Flow, images: torch.Tensor, args: argparse.Namespace) -> None:
        self.flow, self.images, self.args = flow, images, args
        self.index = torch.zeros(args.batch, dtype=torch.long, device="cuda")
        self.lr = torch.tensor(0.0, device="cuda")
        self.parameters = [p for p in flow.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(
            self.parameters,
            lr=self.lr,
            betas=(0.9, 0.999),
            eps=1e-8,
            amsgrad=True,
            fused=True,
            capturable=True,
        )
        self.average = [p.detach().clone() for p in self.parameters]
        self.scale = 1 / (flow.dimensions * math.log(2))

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Forward, backward and update; the loss in bpd and the norm of the gradient."""
        x = self.images[self.index].float()
        if self.args.flip:
            flipped = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
            x = torch.where(flipped, x.flip(3), x)
        x = (x + torch.rand_like(x)) / self.flow.levels
        density = self.flow.log_density(
            x, partial(fast_transform, self.flow.net, dtype=self.args.dtype)
        )
        loss = -density.mean() * self.scale
        for p in self.parameters:
            p.grad = None
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.args.clip, foreach=True)
        self.optimizer.step()
        torch._foreach_lerp_(self.average, self.parameters, 1 - self.args.ema)
        return loss.detach(), norm.detach()

    def capture(self) -> None:
        """Warm up with a learning rate of 0, then record."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.run()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss, self.norm = self.run()
        for state in self.optimizer.state.values():  # forget the warm-up
            for value in state.values():
                value.zero_()

    def __call__(self, index: torch.Tensor, lr: float) -> None:
        self.index.copy_(index, non_blocking=True)
        self.lr.fill_(lr)
        self.graph.replay()


@torch.no_grad()
def bits_per_dim(flow: Flow, images: torch.Tensor, batch: int, draws: int = 1) -> list[float]:
    """Mean bpd in true float32, one figure a draw."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    means = []
    for draw in range(draws):
        total = 0.0
        for begin in range(0, len(images), batch):
            part = images[begin : begin + batch]
            index = torch.arange(begin, begin + len(part), device=part.device)
            total += float(flow.bits_per_dim(part, seed=1, draw=draw, index=index).double().sum())
        means.append(total / len(images))
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    return means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset")
    parser.add_argument("--data", default="data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warm-up", type=int, default=200)
    parser.add_argument("--decay", type=float, default=0.5, help="share of the time that decays")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--flip", action="store_true")
    parser.add_argument("--limit", type=int, help="training images to use")
    parser.add_argument("--held-out", type=int, default=1000, help="last training images, kept")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--test", action="store_true", help="evaluate on the test set at the end")
    args = parser.parse_args()
    args.dtype = torch.float32 if args.float32 else torch.bfloat16
    begin = time.time()
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    data = load(args.preset, "train", args.data).images[: args.limit]
    train, held = data[: -args.held_out].cuda(), data[-args.held_out :].cuda()
    flow = Flow.preset(args.preset).cuda().train()
    record = {"seconds": 0.0, "images": 0, "curve": [], "runs": []}
    if args.start:
        record = load_pieces(flow, args.start)
        record.pop("config")
    arguments = {k: str(v) for k, v in vars(args).items()}
    record["runs"].append({"arguments": arguments, "images_in_set": len(train)})
    step_function = Step(flow, train, args)
    step_function.capture()
    print(f"ready after {time.time() - begin:.0f} s, {len(train)} images", flush=True)

    generator = torch.Generator(device="cuda").manual_seed(args.seed + len(record["runs"]))
    order, at, step, last_save = torch.empty(0, device="cuda"), 0, 0, time.time()
    past_seconds, past_images = record["seconds"], record["images"]
    torch.cuda.synchronize()
    began = time.time()
    while True:
        seconds = time.time() - began
        if (time.time() - begin) > 60 * args.minutes - 25:
            break
        if at + args.batch > len(order):
            order, at = torch.randperm(len(train), device="cuda", generator=generator), 0
        step_function(
            order[at : at + args.batch], learning_rate(step, time.time() - begin + 25, args)
        )
        at, step = at + args.batch, step + 1
        if step % 50 == 0:
            loss, norm = float(step_function.loss), float(step_function.norm)
            if not math.isfinite(loss):
                print(
                    f"stopped: the loss is {loss} at step {step}; the last weights saved are good"
                )
                return
        if step % 500 == 0:
            rate = step * args.batch / (time.time() - began)
            record["curve"].append([past_images + step * args.batch, round(loss, 4)])
            print(
                f"{seconds:5.0f} s step {step} bpd {loss:.4f} norm {norm:.2f} {rate:.0f} img/s",
                flush=True,
            )
        if time.time() - last_save > 120:
            record |= {"seconds": past_seconds + seconds, "images": past_images + step * args.batch}
            save_pieces(flow, args.out / "weights", record)
            last_save = time.time()
    torch.cuda.synchronize()
    seconds = time.time() - began
    record |= {"seconds": past_seconds + seconds, "images": past_images + step * args.batch}
    record["runs"][-1] |= {
        "seconds": round(seconds, 1),
        "steps": step,
        "images_per_second": round(step * args.batch / seconds),
        "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }
    raw = bits_per_dim(flow, held, 500)[0]
    with torch.no_grad():
        for p, average in zip(step_function.parameters, step_function.average, strict=True):
            p.copy_(average)
    averaged = bits_per_dim(flow, held, 500)[0]
    record["runs"][-1] |= {"held_out_bpd": raw, "held_out_bpd_averaged": averaged}
    if args.test:
        test = load(args.preset, "test", args.data).images.cuda()
        record["runs"][-1]["test_bpd"] = bits_per_dim(flow, test, 500)[0]
    save_pieces(flow, args.out / "weights", record)
    print(json.dumps(record["runs"][-1], indent=1))


if __name__ == "__main__":
    main()
