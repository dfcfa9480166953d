#!/usr/bin/env python3
"""Holds every include against the house of ARCHITECTURE.md.

Prints one line a violation (file:line: what, and the rule), exits 1 if any.
With --table it prints the table of rooms instead.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What a room may include besides itself and base/.
ROOMS = {
    "base": [],
    "topology": [],
    "ops": [],
    "launch": ["topology"],
    "comm": ["topology", "launch"],
    "optim": ["ops", "comm"],
    "data_parallel": ["comm", "optim"],
    "tensor_parallel": ["topology", "comm", "ops"],
    "context_parallel": ["topology", "comm", "ops"],
    "pipeline_parallel": ["topology", "comm"],
    "model": ["topology", "ops", "tensor_parallel", "context_parallel"],
    "data": ["topology"],
    "checkpoint": ["topology", "comm"],
}
ROOMS["train"] = list(ROOMS)
EVERY_ROOM = list(ROOMS)

# What goes beyond the table: (files of the includer, the included), why.
EXCEPTIONS = [
    (r"brigade/model/", r"brigade/comm/(self_)?communicator\.h",
     "a model is built with the communicators of its axes, size 1 included"),
    (r"brigade/checkpoint/", r"brigade/model/(llama_config|param_names)\.h",
     "Hugging Face's names and shapes, PURE: what a checkpoint's files hold"),
    (r"brigade/checkpoint/", r"brigade/optim/adamw\.h",
     "the optimizer's state is part of a checkpoint"),
    (r"brigade/checkpoint/", r"brigade/ops/split_master\.h",
     "in memory a master is two halves, in a file it is whole"),
]

# Headers of libtorch that only these files may include.
FENCED = [
    (r"(torch/csrc/distributed/|c10d/|gloo/)", r"(brigade/comm/|bench/)",
     "c10d is included in brigade/comm and bench only"),
    (r"torch/csrc/autograd/(functions/accumulate_grad|function_hook)",
     r"(brigade/data_parallel/grad_hooks\.|tests/)",
     "autograd's hooks are touched in data_parallel/grad_hooks.* only"),
]
FENCED_WORDS = [
    (re.compile(r"\b(AccumulateGrad\w*|grad_accumulator|queue_callback)\b\s*[(<>:]"),
     r"(brigade/data_parallel/grad_hooks\.|tests/)",
     "autograd's hooks are touched in data_parallel/grad_hooks.* only"),
    (re.compile(r"\b(getenv|secure_getenv|setenv|putenv)\s*\(|\benviron\b\s*[;,)\[]"),
     r"(brigade/launch/|cli/|tests/|bench/|examples/)",
     "the environment is read in launch/ and cli/ only"),
]

# No libtorch, and for the first group no process, thread or clock either.
PURE = re.compile(
    r"brigade/(base/|topology/|data_parallel/bucket_(plan|prediction)\."
    r"|pipeline_parallel/(action|schedule|simulator)[a-z_]*\."
    r"|pipeline_parallel/schedules/|tensor_parallel/(shard|token_layout)\."
    r"|model/(llama_config|param_names))")
NO_TORCH = re.compile(
    r"brigade/(launch/|data/|checkpoint/(safetensors|hub)|train/train_config)")
TORCH = re.compile(r"(torch|c10|c10d|ATen|caffe2|gloo)/")
IMPURE = re.compile(r"(unistd\.h|sys/|thread|mutex|future|chrono|ctime|time\.h)$")
# base/ holds the few wrappers of the outside world that all rooms share.
IMPURE_ALLOWED = re.compile(r"brigade/base/(clock|file|check|error)")

INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([^>"]+)[>"]')


def room_of(path):
    match = re.match(r"brigade/([a-z_0-9]+)/", path)
    return match.group(1) if match else None


def code_of(line):
    """The line without its comment and its strings."""
    return re.sub(r'"(\\.|[^"\\])*"', '""', line).split("//")[0]


def problems_of(path, text):
    room = room_of(path)
    if room is not None and room not in ROOMS:
        yield 1, f"{room} is no room of the house: add it to ROOMS and " \
            "ARCHITECTURE.md"
        return
    for number, line in enumerate(text.splitlines(), 1):
        code = code_of(line)
        for word, allowed, rule in FENCED_WORDS:
            if word.search(code) and not re.match(allowed, path):
                yield number, rule
        include = INCLUDE.match(line)
        if not include:
            continue
        name = include.group(1)
        if name.startswith("brigade/"):
            yield from ((number, rule) for rule in room_problems(path, room, name))
        elif name.startswith("cli/") and not path.startswith(("cli/", "tests/")):
            yield number, "cli/ is included by nobody"
        for header, allowed, rule in FENCED:
            if re.match(header, name) and not re.match(allowed, path):
                yield number, f"{name}: {rule}"
        if PURE.match(path) or NO_TORCH.match(path):
            if TORCH.match(name):
                yield number, f"{name}: this file is built without libtorch"
        if PURE.match(path) and not IMPURE_ALLOWED.match(path):
            if IMPURE.match(name):
                yield number, f"<{name}>: this file is PURE"


def room_problems(path, room, name):
    if not (ROOT / name).exists():
        yield f"{name} does not exist"
        return
    if PURE.match(path) and not PURE.match(name):
        yield f"{name}: a PURE file includes only PURE files"
        return
    target = room_of(name)
    if room is None or target is None:
        # brigade.h, cli/, tests/, bench/, examples/ include any room.
        if room is not None and target is None:
            yield f"{name}: the public face is included by no room"
        return
    if target in (room, "base") or target in ROOMS[room]:
        return
    for includer, included, _ in EXCEPTIONS:
        if re.match(includer, path) and re.fullmatch(included, name):
            return
    allowed = ", ".join(ROOMS[room]) or "nothing"
    yield f"{name}: {room}/ may include, besides base/, only {allowed}"


def main():
    if sys.argv[1:] == ["--table"]:
        for room, allowed in ROOMS.items():
            print(f"{room:18} {', '.join(allowed) or '-'}")
        for includer, included, why in EXCEPTIONS:
            print(f"{includer} -> {included}: {why}")
        return 0
    count = 0
    files = 0
    for folder in ("brigade", "cli", "tests", "bench", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
                continue
            name = path.relative_to(ROOT).as_posix()
            if name.startswith("tests/consumer/"):
                continue  # a user's project
            files += 1
            for number, rule in problems_of(name, path.read_text()):
                print(f"{name}:{number}: {rule}")
                count += 1
    print(f"check_includes: {files} files, {count} violations")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
