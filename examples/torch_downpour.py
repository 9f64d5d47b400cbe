"""A plain PyTorch loop trained by several processes through parameter servers (DistBelief's Downpour SGD).

Each process has the whole network and its own part of MNIST. It pushes gradients, which the servers apply with the rule
given to `register`, and pulls what all processes have made of the parameters: no optimizer runs here.

    adamctl data fetch mnist --data DIR
    adamctl controller start --port 7070
    adamctl ps start --controller 127.0.0.1:7070
    python examples/torch_downpour.py adam://127.0.0.1:7070/mnist --data DIR
"""

import argparse
import gzip
import multiprocessing
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import adamctl as adam


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(10, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(320, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def read_idx(folder: Path, name: str) -> np.ndarray:
    """Reads one of MNIST's files, compressed or not."""
    path = next(path for path in sorted(folder.rglob(f"{name}*")) if path.is_file())
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    shape = np.frombuffer(content, ">i4", content[3], 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def load(folder: Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    images = read_idx(folder, f"{split}-images-idx3-ubyte")[:, None].astype(np.float32) / 255 - 0.5
    return torch.from_numpy(images), torch.from_numpy(read_idx(folder, f"{split}-labels-idx1-ubyte").astype(np.int64))


def take_part(ps: adam.ParameterClient, model: nn.Module, lr: float) -> None:
    """Registers the parameters and lets the model's lie where the client pulls to, so that a pull copies nothing."""
    named = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    shared = ps.register(named, rule=adam.Adagrad(lr))
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(shared[name])


def work(url: str, rank: int, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    images, labels = load(options.data, "train")
    mine = torch.arange(rank, len(images), options.workers)
    model, loss_of = network(), nn.CrossEntropyLoss()
    with adam.ParameterClient(url) as ps:
        take_part(ps, model, options.lr)
        for _ in range(options.passes):
            order = mine[torch.randperm(len(mine))]
            for chosen in order.split(options.batch):
                model.zero_grad()
                loss_of(model(images[chosen]), labels[chosen]).backward()
                gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
                ps.push(gradients, examples=len(chosen))
                ps.pull()


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        guesses = torch.cat([model(part).argmax(1) for part in images.split(500)])
    return float((guesses == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="adam://HOST:PORT/JOB")
    parser.add_argument("--data", type=Path, required=True, help="folder with MNIST's four files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.02)
    options = parser.parse_args()
    model = network()
    with adam.ParameterClient(options.url) as ps:
        take_part(ps, model, options.lr)
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=work, args=(options.url, rank, options)) for rank in range(options.workers)]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if any(worker.exitcode for worker in workers):
            raise SystemExit("a worker failed")
        seconds = time.perf_counter() - started
        test = load(options.data, "t10k")
        examples = options.passes * len(load(options.data, "train")[1])
        ps.pull()
        print(f"test accuracy {accuracy(model, *test):.4f} after {options.passes} passes", end=", ")
        print(f"{examples / seconds:.0f} images/s with {options.workers} processes, starting them included")
        ps.close(end=True)


if __name__ == "__main__":
    main()
