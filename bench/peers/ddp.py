"""One rank of PyTorch DistributedDataParallel on the model of
bench/bench_data_parallel.cpp: prints nothing, writes its step times (ms, one a
line) into the file named by --out on rank 0.

Started by bench_data_parallel, which sets RANK, WORLD_SIZE and
BRIGADE_STORE_FILE.
"""
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--foreach", type=int, required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()

    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["BRIGADE_STORE_FILE"] + ".ddp", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    torch.manual_seed(1)
    net = torch.nn.Sequential(
        *[torch.nn.Linear(args.width, args.width) for _ in range(args.layers)]
    )
    model = DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, foreach=bool(args.foreach)
    )
    x = torch.randn(args.batch, args.width)
    times = []
    for step in range(args.warmup + args.steps):
        dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimizer.step()
        if step >= args.warmup:
            times.append(1e3 * (time.perf_counter() - begin))
    if rank == 0:
        with open(args.out, "w") as out:
            out.writelines(f"{t:.6f}\n" for t in times)
    dist.barrier()


main()
