"""The step of bench_step in PyTorch, as its users write it: the same Llama, the
same batch, AdamW, gradients accumulated; eager or compiled in one process, on the
CPU or a GPU, or DistributedDataParallel over Gloo.

    /usr/bin/python3 bench/peers/pytorch_step.py --dtype fp32 --threads 1 --ranks 2

With --store FILE it is the one rank that RANK says; the caller starts the others.
"""
import argparse
import os
import resource
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

SHAPES = {
    # hidden, layers, heads, key heads, ffn, vocabulary, tied, seq, micro, acc
    "jargon_5m": (256, 6, 8, 4, 688, 4096, True, 256, 4, 2),
    "stories15m": (288, 6, 6, 6, 768, 32000, False, 256, 4, 2),
    "stories15m_4k": (288, 6, 6, 6, 768, 32000, False, 4096, 1, 1),
    "smollm_135m": (576, 30, 9, 3, 1536, 49152, True, 512, 2, 1),
    "smollm_135m_gpu": (576, 30, 9, 3, 1536, 49152, True, 2048, 8, 1),
    "llama_1b": (2048, 16, 32, 8, 8192, 128256, True, 2048, 4, 1),
}


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        if x.is_cuda:
            return F.rms_norm(x, self.weight.shape, self.weight, 1e-6)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Block(nn.Module):
    def __init__(self, c, h, hkv, f):
        super().__init__()
        self.h, self.hkv, self.d = h, hkv, c // h
        self.q = nn.Linear(c, c, bias=False)
        self.k = nn.Linear(c, hkv * self.d, bias=False)
        self.v = nn.Linear(c, hkv * self.d, bias=False)
        self.o = nn.Linear(c, c, bias=False)
        self.gate = nn.Linear(c, f, bias=False)
        self.up = nn.Linear(c, f, bias=False)
        self.down = nn.Linear(f, c, bias=False)
        self.norm1, self.norm2 = Norm(c), Norm(c)

    def forward(self, x, cos, sin, hidden):
        b, t, c = x.shape
        y = self.norm1(x)
        q = self.q(y).view(b, t, self.h, self.d).transpose(1, 2)
        k = self.k(y).view(b, t, self.hkv, self.d).transpose(1, 2)
        v = self.v(y).view(b, t, self.hkv, self.d).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if x.is_cuda:
            out = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=True
            )
        else:
            k = k.repeat_interleave(self.h // self.hkv, 1)
            v = v.repeat_interleave(self.h // self.hkv, 1)
            scores = q @ k.transpose(-1, -2) * self.d**-0.5
            scores = scores.masked_fill(hidden, float("-inf"))
            out = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v
        x = x + self.o(out.transpose(1, 2).reshape(b, t, c))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        c, layers, h, hkv, f, vocabulary, tied, t, _, _ = shape
        self.embed = nn.Embedding(vocabulary, c)
        self.blocks = nn.ModuleList(Block(c, h, hkv, f) for _ in range(layers))
        self.norm = Norm(c)
        self.head = nn.Linear(c, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        d = c // h
        frequency = 10000.0 ** (-torch.arange(0, d, 2) / d)
        angle = torch.outer(torch.arange(t), torch.cat((frequency, frequency)))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        # Not a buffer: Gloo broadcasts no booleans.
        self.hidden = torch.ones(t, t, dtype=torch.bool).triu(1)

    def forward(self, ids, targets):
        x = self.embed(ids)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin, self.hidden)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def work(rank, args, store, results):
    start = time.time()
    torch.set_num_threads(args.threads)
    shape = SHAPES[args.shape]
    t, micro, accumulation = shape[7:]
    accumulation = args.accumulation or accumulation
    torch.manual_seed(0)
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    model = Llama(shape).to(args.device, dtype)
    model.hidden = model.hidden.to(args.device)
    net = torch.compile(model) if args.compile else model
    on_gpu = args.device == "cuda"
    if args.ranks > 1:
        dist.init_process_group(
            "gloo", init_method="file://" + store, rank=rank, world_size=args.ranks
        )
        # Gloo has no bf16 in 1.13: gradients are sent as float32, and weights,
        # which are equal by their seed, are not broadcast.
        if dtype != torch.float32:
            nn.parallel.distributed._sync_module_states = lambda *a, **k: None
        net = nn.parallel.DistributedDataParallel(
            model,
            gradient_as_bucket_view=dtype == torch.float32,
            broadcast_buffers=False,
        )
        if dtype != torch.float32:
            net.register_comm_hook(None, widened)
    fused = {"fused": True} if on_gpu else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **fused)
    ids = torch.randint(shape[5], (micro, t), device=args.device)
    targets = torch.randint(shape[5], (micro, t), device=args.device)
    times = []
    first = None
    for _ in range(args.steps + 1):
        begin = time.time()
        for i in range(accumulation):
            last = i + 1 == accumulation
            if args.ranks > 1:
                net.require_backward_grad_sync = last
            (net(ids, targets) / accumulation).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=on_gpu)
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.time() - begin)
        first = first or time.time() - start
    tokens = t * micro * accumulation * args.ranks
    rate = tokens / statistics.median(times[1:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if on_gpu:
        peak = torch.cuda.max_memory_reserved() / 1024**2
    if rank == 0:
        results.put((rate, peak, first))


def widened(_, bucket):
    wide = bucket.buffer().float() / dist.get_world_size()
    future = dist.all_reduce(wide, async_op=True).get_future()
    return future.then(lambda f: f.value()[0].to(torch.bfloat16))


class Printed:
    def put(self, result):
        rate, peak, first = result
        print(
            f"tokens_per_second={rate:.0f} peak_memory_gb={peak * 1024**2 / 1e9:.3f} "
            f"start_s={first:.1f}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="stories15m", choices=SHAPES)
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--accumulation", type=int, help="micro-batches of a step")
    parser.add_argument("--store", help="file where the ranks meet")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ["OPENBLAS_NUM_THREADS"] = str(args.threads)
    if args.store:
        work(int(os.environ["RANK"]), args, args.store, Printed())
        dist.barrier()
        return
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        ranks = [
            context.Process(target=work, args=(rank, args, store, results))
            for rank in range(args.ranks)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            raise SystemExit("a rank failed")
    Printed().put(results.get())


if __name__ == "__main__":
    main()
