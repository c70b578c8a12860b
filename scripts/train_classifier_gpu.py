"""Train a classifier or a ResNet on one GPU for a given time.

    python scripts/train_classifier_gpu.py cifar10-classifier --data data --out out --minutes 8
    python scripts/train_classifier_gpu.py mnist-resnet --data data --out out --minutes 2

One step (augmentation, forward, backward, clipping, AMSGrad, moving average) is captured in one
CUDA graph; images stay on the device as bytes. --device cpu runs the same step without a graph.
The learning rate falls along a cosine to 0 at the end of the time, or of --epochs, whichever comes
first. Figures are of the whole training and test sets in true float32, without augmentation.
Weights are written in pieces of at most 15 MB with the masked entries left out, as float32, as
float16 with --weights float16 (then the final figures are of the rounded weights), or not at all.
`scripts/join_classifier.py` makes a model folder of them.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from mintnet.data import load
from mintnet.models import Classifier, ResNet
from mintnet.models.labelled import ImageClassifier
from mintnet.models.storage import packed_state
from mintnet.precision import true_float32

PIECE = 15_000_000
PRESETS = ("digits-classifier", "mnist-classifier", "cifar10-classifier")
PRESETS += ("mnist-resnet", "cifar10-resnet")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("--data", default="data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8.0, help="all in all, set-up included")
    parser.add_argument("--epochs", type=float, default=math.inf, help="at most so many")
    parser.add_argument("--reserve", type=float, default=35.0, help="seconds for evaluation")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warm-up", type=float, default=2.0, help="epochs")
    parser.add_argument("--eps", type=float, default=1e-6)
    parser.add_argument("--beta2", type=float, default=0.999)
    parser.add_argument("--no-amsgrad", action="store_true", help="Adam instead of AMSGrad")
    parser.add_argument("--decay", type=float, default=0.1, help="weight decay")
    parser.add_argument("--coupled", action="store_true", help="decay as an L2 term of the loss")
    parser.add_argument("--clip", type=float, default=5.0, help="norm of the gradient; 0 for none")
    parser.add_argument("--smoothing", type=float, default=0.1, help="of labels")
    parser.add_argument("--crop", type=int, default=4, help="padding of random crops")
    parser.add_argument(
        "--flip", action=argparse.BooleanOptionalAction, help="cifar10 if not given"
    )
    parser.add_argument("--cutout", type=int, default=0, help="side of a square that is blanked")
    parser.add_argument("--ema", type=float, default=0.999, help="0 for none")
    parser.add_argument("--momentum", type=float, default=0.1, help="of batch statistics")
    parser.add_argument("--no-elu", action="store_true", help="no ELU before the pooling")
    parser.add_argument("--float32", action="store_true", help="TF32 convolutions, not bf16")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--limit", type=int, help="training images to use")
    parser.add_argument("--held-out", type=int, default=0, help="last training images, kept")
    parser.add_argument("--weights", choices=("float32", "float16", "none"), default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    args.cuda = args.device.startswith("cuda")
    if args.flip is None:
        args.flip = args.preset.startswith("cifar10")
    return args


def build(args: argparse.Namespace) -> ImageClassifier:
    name, _, kind = args.preset.partition("-")
    if kind == "resnet":
        return ResNet.preset(name)
    model = Classifier.preset(name)
    if args.no_elu:
        from dataclasses import replace

        model = Classifier(replace(model.config, elu=False), model.pixels, model.classes)
    return model


def augmented(images: torch.Tensor, args: argparse.Namespace) -> torch.Tensor:
    """Random crops, mirror images and blanked squares of bytes, all on the device."""
    n, _, h, w = images.shape
    device = images.device
    rows = torch.arange(h, device=device).expand(n, h)
    columns = torch.arange(w, device=device).expand(n, w)
    if args.flip:
        mirrored = torch.rand(n, 1, device=device) < 0.5
        columns = torch.where(mirrored, w - 1 - columns, columns)
    if args.crop:
        shift = torch.randint(0, 2 * args.crop + 1, (2, n, 1), device=device)
        rows, columns = rows + shift[0], columns + shift[1]
        images = F.pad(images, (args.crop,) * 4)
    sample = torch.arange(n, device=device)[:, None, None]
    images = images[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    if args.cutout:
        centre = torch.rand(2, n, 1, device=device)
        far = args.cutout / 2
        y = (torch.arange(h, device=device) + 0.5 - centre[0] * h).abs() < far
        x = (torch.arange(w, device=device) + 0.5 - centre[1] * w).abs() < far
        images = images.masked_fill((y[:, :, None] & x[:, None, :])[:, None], 0)
    return images


class Step:
    """One step of the optimizer, as a CUDA graph where there is a GPU."""

    def __init__(self, model, images, labels, args) -> None:
        self.model, self.images, self.labels, self.args = model, images, labels, args
        device = images.device
        self.index = torch.zeros(args.batch, dtype=torch.long, device=device)
        self.lr = torch.tensor(0.0, device=device)
        self.average_rate = torch.tensor(1.0, device=device)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        # decoupled decay is for the matrices alone: not for biases, batch norms and t
        matrices = {
            id(p)
            for name, p in model.named_parameters()
            if p.dim() >= 2 and not name.endswith("raw_t")
        }
        groups = [
            {"params": [p for p in self.parameters if id(p) in matrices]},
            {"params": [p for p in self.parameters if id(p) not in matrices]},
        ]
        if not args.coupled:
            groups[1]["weight_decay"] = 0.0
        kind = torch.optim.Adam if args.coupled else torch.optim.AdamW
        self.optimizer = kind(
            groups,
            lr=self.lr if args.cuda else 0.0,
            betas=(0.9, args.beta2),
            eps=args.eps,
            weight_decay=args.decay,
            amsgrad=not args.no_amsgrad,
            fused=args.cuda,
            capturable=args.cuda,
        )
        self.average = [p.detach().clone() for p in self.parameters] if args.ema else []
        self.dtype = torch.bfloat16 if args.cuda and not args.float32 else None
        self.compiled = args.cuda and not args.eager

    def run(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Forward, backward and update; cross entropy, share of mistakes, norm of the gradient."""
        labels = self.labels[self.index]
        x = self.model.prepared(augmented(self.images[self.index], self.args))
        logits = self.model.logits(x, self.dtype, self.compiled)
        loss = F.cross_entropy(logits, labels, label_smoothing=self.args.smoothing)
        for p in self.parameters:
            p.grad = None
        loss.backward()
        most = self.args.clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, most, foreach=True)
        self.optimizer.step()
        if self.average:
            torch._foreach_mul_(self.average, 1 - self.average_rate)
            scaled = torch._foreach_mul([p.detach() for p in self.parameters], self.average_rate)
            torch._foreach_add_(self.average, scaled)
        with torch.no_grad():
            nats = F.cross_entropy(logits, labels)
            wrong = (logits.argmax(1) != labels).float().mean()
        return nats, wrong, norm.detach()

    def prepare(self) -> None:
        """Warm up with a learning rate of 0, record, and forget the warm-up."""
        if not self.args.cuda:
            return
        before = [b.clone() for b in self.model.buffers()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.run()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.results = self.run()
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()
        for buffer, old in zip(self.model.buffers(), before, strict=True):
            buffer.copy_(old)

    def __call__(self, index: torch.Tensor, lr: float, average_rate: float) -> None:
        self.index.copy_(index, non_blocking=True)
        self.average_rate.fill_(average_rate)
        if self.args.cuda:
            self.lr.fill_(lr)
            self.graph.replay()
            return
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.results = self.run()


def learning_rate(progress: float, epoch: float, args: argparse.Namespace) -> float:
    """A linear warm-up over some epochs, and a cosine to 0 over the run."""
    warm = min(1.0, (epoch + 0.01) / args.warm_up) if args.warm_up else 1.0
    return args.lr * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


@torch.no_grad()
def renew_statistics(model, images, args) -> None:
    """Batch statistics of the weights as they are: plain means over 100 augmented batches."""
    norms = [m for m in model.modules() if hasattr(m, "momentum")]
    kept = [m.momentum for m in norms]
    model.train()
    batch = min(512, len(images))
    for number in range(100 if args.cuda else 4):
        for norm in norms:
            norm.momentum = 1 / (number + 1)
        index = torch.randint(len(images), (batch,), device=images.device)
        with true_float32():
            model.logits(model.prepared(augmented(images[index], args)))
    for norm, momentum in zip(norms, kept, strict=True):
        norm.momentum = momentum
    model.eval()


@torch.no_grad()
def accuracy(model, images, labels, batch: int = 500) -> dict:
    """Accuracy and mean cross entropy over all images, in true float32."""
    model.eval()
    right, nats = 0, 0.0
    with true_float32():
        for begin in range(0, len(images), batch):
            x = model.prepared(images[begin : begin + batch])
            log_probs = model.logits(x).log_softmax(1)
            truth = labels[begin : begin + batch]
            right += int((log_probs.argmax(1) == truth).sum())
            nats -= float(log_probs.gather(1, truth[:, None]).double().sum())
    model.train()
    return {"accuracy": right / len(images), "nats": nats / len(images), "images": len(images)}


def save_pieces(model, folder: Path, record: dict, form: str) -> None:
    """Weights in files of at most PIECE bytes, and the record of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("weights-*.safetensors"):
        old.unlink()
    pieces, size = [{}], 0
    for name, tensor in packed_state(model).items() if form != "none" else ():
        if form == "float16" and tensor.is_floating_point():
            tensor = tensor.half()
        if size + tensor.nbytes > PIECE and pieces[-1]:
            pieces.append({})
            size = 0
        pieces[-1][name] = tensor
        size += tensor.nbytes
    for number, piece in enumerate(pieces if form != "none" else ()):
        save_file(piece, folder / f"weights-{number}.safetensors")
    record = {"config": model.describe(), **record}
    (folder / "record.json").write_text(json.dumps(record, indent=1) + "\n")


def rounded(model) -> None:
    """Weights and statistics as float16 holds them."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(tensor.half().to(tensor.dtype))


def main() -> None:
    args = options()
    begin = time.time()
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    name = args.preset.partition("-")[0]
    train, test = load(name, "train", args.data), load(name, "test", args.data)
    count = len(train) - args.held_out
    count = min(count, args.limit or count)
    images = train.images[:count].to(args.device)
    labels = train.labels[:count].to(args.device)
    args.batch = min(args.batch, count)
    model = build(args).to(args.device).train()
    for module in model.modules():
        if hasattr(module, "momentum"):
            module.momentum = args.momentum
    step_function = Step(model, images, labels, args)
    step_function.prepare()
    setup = time.time() - begin
    print(
        f"{args.preset}: {model.parameter_count():,} parameters, {count:,} images, ready after "
        f"{setup:.0f} s\n  time   epoch     lr     loss  train error   norm   images/s",
        flush=True,
    )
    per_epoch = count // args.batch
    total = 60 * args.minutes - setup - args.reserve
    generator = torch.Generator(device=args.device).manual_seed(args.seed)
    curve, step, sums, since = [], 0, torch.zeros(3, device=args.device), 0
    order = torch.empty(0)
    began = time.time()
    while True:
        seconds, epoch = time.time() - began, step / per_epoch
        progress = max(seconds / total, epoch / args.epochs)
        if progress >= 1:
            break
        if step % per_epoch == 0:
            order = torch.randperm(count, device=args.device, generator=generator)
        at = step % per_epoch * args.batch
        rate = learning_rate(progress, epoch, args)
        decay = min(args.ema, (1 + step) / (10 + step))
        step_function(order[at : at + args.batch], rate, 1 - decay)
        sums += torch.stack([r.float() for r in step_function.results])
        step, since = step + 1, since + 1
        if args.cuda and step % 20 == 0:
            torch.cuda.synchronize()  # or the host's clock would run ahead of the work
        if step % per_epoch == 0 or (not args.cuda and step % 10 == 0):
            loss, wrong, norm = (sums / since).tolist()  # waits, so that time is not run ahead of
            sums, since = torch.zeros_like(sums), 0
            speed = step * args.batch / (time.time() - began)
            row = [step / per_epoch, time.time() - began, rate, loss, wrong]
            curve.append([float(f"{x:.5g}") for x in row])
            if not math.isfinite(loss):
                raise SystemExit(f"stopped: the loss is {loss} in epoch {step / per_epoch:.1f}")
            if step <= per_epoch or (step // per_epoch) % 5 == 0 or not args.cuda:
                print(
                    f"{seconds:5.0f} s {step / per_epoch:6.1f}  {rate:.1e}  {loss:.4f}  "
                    f"{100 * wrong:7.2f} %   {norm:6.2f}  {speed:7.0f}",
                    flush=True,
                )
    if args.cuda:
        torch.cuda.synchronize()
    seconds = time.time() - began
    record = {
        "arguments": {k: str(v) for k, v in vars(args).items()},
        "device": torch.cuda.get_device_name() if args.cuda else platform.machine(),
        "torch": torch.__version__,
        "parameters": model.parameter_count(),
        "training_images": count,
        "set_up_seconds": round(setup, 1),
        "seconds": round(seconds, 1),
        "steps": step,
        "epochs": round(step / per_epoch, 2),
        "images_per_second": round(step * args.batch / seconds),
        "curve_columns": ["epoch", "seconds", "learning_rate", "cross_entropy_nats", "error"],
        "curve": curve,
    }
    if args.cuda:
        record["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        del step_function.graph  # frees its memory for evaluation
    sets = {"test": (test.images.to(args.device), test.labels.to(args.device))}
    if args.held_out:
        sets["held_out"] = (
            train.images[-args.held_out :].to(args.device),
            train.labels[-args.held_out :].to(args.device),
        )
    record["last_weights"] = {k: accuracy(model, *v) for k, v in sets.items()}
    if args.ema:
        with torch.no_grad():
            for p, average in zip(step_function.parameters, step_function.average, strict=True):
                p.copy_(average)
        renew_statistics(model, images, args)
        record["averaged_weights"] = {k: accuracy(model, *v) for k, v in sets.items()}
    sets["train"] = (images, labels)
    if args.weights == "float16":
        rounded(model)
    record["final"] = {k: accuracy(model, *v) for k, v in sets.items()}
    record["stored_as"] = args.weights
    model.eval()
    save_pieces(model, args.out / args.preset, record, args.weights)
    del record["curve"]
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
