"""One rank of PyTorch on the model of bench/bench_zero.cpp: DDP, DDP with
ZeroRedundancyOptimizer, or FSDP2 (fully_shard), each with float32 weights that
AdamW steps and bf16 products. Rank 0 writes the median step in ms and the bytes
that it holds between two steps, beyond those of a small model, into the file
named by --out.

Started by bench_zero, which sets RANK, WORLD_SIZE and BRIGADE_STORE_FILE.
"""
import argparse
import ctypes
import gc
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width, width) * 0.02)

    def forward(self, x):
        return F.linear(x, self.weight)


def held_bytes():
    """Anonymous memory: what is read from files is not counted."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/status has no RssAnon")


def wrap(kind, net, ranks):
    """The model, its optimizer, and the context of its forward."""
    autocast = lambda: torch.autocast("cpu", torch.bfloat16)
    if kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh("cpu", (ranks,))
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for layer in net:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(net, mesh=mesh, mp_policy=policy)
        return net, torch.optim.AdamW(net.parameters(), lr=1e-4), torch.enable_grad
    model = torch.nn.parallel.DistributedDataParallel(
        net, gradient_as_bucket_view=True
    )
    if kind == "ddp":
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4), autocast
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, lr=1e-4
    )
    return model, optimizer, autocast


def train(args, layers, width, steps):
    """The times of the steps, and the bytes held after them."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(*[Layer(width) for _ in range(layers)])
    model, optimizer, context = wrap(args.kind, net, dist.get_world_size())
    held_bytes()  # gives initial weights back
    x = torch.randn(args.rows, width).to(torch.bfloat16)
    times = []
    for _ in range(steps):
        dist.barrier()
        begin = time.perf_counter()
        with context():
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        times.append(1e3 * (time.perf_counter() - begin))
    del loss
    return times, held_bytes()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("ddp", "zero1", "fsdp2"), required=True)
    for size in ("layers", "width", "rows", "steps", "warmup"):
        parser.add_argument("--" + size, type=int, required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()

    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["BRIGADE_STORE_FILE"] + ".peer", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    # A small model first: what the libraries take by themselves is not counted.
    _, before = train(args, layers=2, width=64, steps=2)
    times, after = train(args, args.layers, args.width, args.warmup + args.steps)
    if rank == 0:
        step_ms = statistics.median(times[args.warmup :])
        with open(args.out, "w") as out:
            out.write(f"{step_ms:.3f} {after - before}\n")
    dist.barrier()
    dist.destroy_process_group()


main()
