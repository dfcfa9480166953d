#!/usr/bin/env python3
"""Holds every include against the modules of ARCHITECTURE.md.

Prints one line per violation (file:line: what, and the rule), exits 1 if there
are any. With --table it prints what each module may include instead.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The modules from the one that knows least to the one that knows most, and what
# each may include besides itself, base/ and options/: only modules above it.
MODULES = {
    "core": {
        "base": [],
        "options": [],
        "json": [],
        "topology": [],
        "model_spec": ["json", "topology"],
        "schedule": ["topology"],
        "machine": [],
        "planner": ["topology", "model_spec", "schedule", "machine"],
    },
    "io": {
        "files": ["json"],
        "launch": ["files"],
        "tokenizer": ["json", "files"],
        "chat": ["json", "files", "tokenizer"],
        "data": ["json", "files", "launch", "tokenizer", "chat"],
        "safetensors": ["json", "files"],
        "gguf": ["json", "model_spec", "files", "safetensors", "tokenizer"],
        "hub": ["json", "files", "safetensors"],
        "config": ["json", "topology", "model_spec", "schedule", "files"],
        "metrics": ["json", "topology", "files", "config"],
        "jobs": ["json", "files"],
        "flight": ["json", "files"],
        "report": ["json", "topology", "schedule", "planner", "files"],
        "run": ["json", "topology", "model_spec", "schedule", "files", "data",
                "safetensors", "config", "metrics"],
    },
    "torch": {
        "comm": ["topology", "launch", "metrics", "flight"],
        "ops": [],
        "kernels/cpu": ["ops"],
        "kernels/aten": ["ops"],
        "kernels/cuda": ["ops", "kernels/aten"],
        "param": ["model_spec", "schedule", "comm", "ops"],
        "sharding": ["schedule", "comm", "ops", "param"],
        "data_parallel": ["schedule", "metrics", "comm", "ops", "param", "sharding"],
        "optim": ["model_spec", "comm", "ops", "param", "sharding", "data_parallel"],
        "wrap": ["comm", "ops", "param", "sharding", "data_parallel", "optim"],
        "tensor_parallel": ["topology", "model_spec", "comm", "ops"],
        "context_parallel": ["schedule", "comm", "ops"],
        "expert_parallel": ["comm", "ops"],
        "pipeline_parallel": ["schedule", "metrics", "comm"],
        "model": ["topology", "model_spec", "config", "comm", "ops",
                  "tensor_parallel", "context_parallel",
                  "expert_parallel"],
        "checkpoint": ["json", "model_spec", "files", "safetensors", "run", "comm",
                       "ops", "param", "optim"],
        "calibrate": ["topology", "machine", "planner", "launch", "metrics", "comm",
                      "ops", "tensor_parallel", "context_parallel", "model"],
        "generate": ["json", "model_spec", "files", "safetensors", "tokenizer",
                     "chat", "config", "metrics", "run", "comm", "model",
                     "checkpoint"],
        "evaluate": ["json", "files", "tokenizer", "data", "config", "comm",
                     "model", "generate"],
        "train": ["*"],
        "doctor": ["*"],
    },
}
LAYER_OF = {name: layer for layer, modules in MODULES.items()
            for name in modules}
ORDER = list(LAYER_OF)
ALLOWED = {name: allowed for modules in MODULES.values()
           for name, allowed in modules.items()}
for name in ALLOWED:
    if ALLOWED[name] == ["*"]:
        ALLOWED[name] = ORDER[:ORDER.index(name)]

# Headers of libraries that only these files may include.
FENCED = [
    (r"(torch/csrc/distributed/|c10d/|gloo/)", r"(brigade/comm/|bench/)",
     "c10d is included in brigade/comm and bench only"),
    (r"mpi\.h$", r"brigade/comm/mpi/",
     "MPI is included in brigade/comm/mpi/ only"),
    (r"brigade/comm/mpi/mpi_(process|group)\.h", r"brigade/comm/mpi/",
     "MPI's inside is included in brigade/comm/mpi/ only"),
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

# A tensor's memory is read in these modules only. The other files are to give
# it up, each for the reason given.
TENSOR_MEMORY = re.compile(r"(\.|->)(mutable_|const_)?data_ptr\s*(<|\()")
TENSOR_MEMORY_MODULES = ("kernels/cpu", "kernels/cuda", "comm", "checkpoint")
TENSOR_MEMORY_FILES = {
    "brigade/generate/sampling.cpp": "draws from cumulated probabilities",
    "brigade/train/bucket_tuner.cpp": "compares the ranks' measured times",
    "brigade/train/train_step.cpp": "reads the step's totals",
}

TORCH = re.compile(r"(torch|c10|c10d|ATen|caffe2|gloo)/")
IMPURE = re.compile(r"(unistd\.h|sys/|thread|mutex|future|chrono|ctime|time\.h)$")

INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([^>"]+)[>"]')


def module_of(path):
    """The module of a file or include: the longest that its folder begins with."""
    for name in sorted(ORDER, key=len, reverse=True):
        if path.startswith(f"brigade/{name}/"):
            return name
    return None


def code_of(line):
    """The line without its comment and its strings."""
    return re.sub(r'"(\\.|[^"\\])*"', '""', line).split("//")[0]


def problems_of(path, text):
    module = module_of(path)
    layer = LAYER_OF.get(module)
    if module is None and re.match(r"brigade/.*/", path):
        yield 1, "its folder is no module: add it to MODULES, CMakeLists.txt " \
            "and ARCHITECTURE.md"
        return
    for number, line in enumerate(text.splitlines(), 1):
        code = code_of(line)
        if TENSOR_MEMORY.search(code) and path.startswith("brigade/") and \
                module not in TENSOR_MEMORY_MODULES and \
                path not in TENSOR_MEMORY_FILES:
            yield number, "a tensor's memory is read in " + \
                ", ".join(TENSOR_MEMORY_MODULES) + " only"
        for word, allowed, rule in FENCED_WORDS:
            if word.search(code) and not re.match(allowed, path):
                yield number, rule
        include = INCLUDE.match(line)
        if not include:
            continue
        name = include.group(1)
        if name.startswith("brigade/"):
            yield from ((number, rule) for rule in module_problems(module, name))
        elif name.startswith("cli/") and not path.startswith(("cli/", "tests/")):
            yield number, "cli/ must not be included"
        for header, allowed, rule in FENCED:
            if re.match(header, name) and not re.match(allowed, path):
                yield number, f"{name}: {rule}"
        if layer in ("core", "io") and TORCH.match(name):
            yield number, f"{name}: {module}/ is built without libtorch"
        if layer == "core" and IMPURE.match(name):
            yield number, f"<{name}>: {module}/ knows no process and no clock"


def module_problems(module, name):
    if not (ROOT / name).exists():
        yield f"{name} does not exist"
        return
    target = module_of(name)
    if module is None:
        return  # brigade.h, cli/, tests/, bench/, examples/ include any module
    if target is None:
        yield f"{name}: no module includes the public header"
        return
    if target in (module, "base", "options") or target in ALLOWED[module]:
        return
    allowed = ", ".join(ALLOWED[module]) or "nothing"
    yield f"{name}: {module}/ may include, besides base/ and options/, only {allowed}"


def included(name):
    """The third column of the table in ARCHITECTURE.md."""
    if ALLOWED[name] and ALLOWED[name] == ORDER[:ORDER.index(name)]:
        return "every module above"
    return ", ".join(ALLOWED[name]) or "-"


def table_problems():
    """CMakeLists.txt builds these modules, ARCHITECTURE.md shows them, and each
    has its tests."""
    cmake = (ROOT / "CMakeLists.txt").read_text()
    for layer, modules in MODULES.items():
        found = re.search(rf"set\({layer}_modules([^)]*)\)", cmake)
        built = found.group(1).split() if found else []
        if built != list(modules):
            yield f"CMakeLists.txt: {layer}_modules is {built}, but the " \
                f"script's layer is {list(modules)}"
    rows = re.findall(r"^\| (\w+) +\| `([\w/]+)` +\| ([^|]*?) +\|",
                      (ROOT / "ARCHITECTURE.md").read_text(), re.M)
    expected = [(LAYER_OF[name], name, included(name)) for name in ORDER]
    if rows != expected:
        wrong = [f"| {layer} | `{name}` | {text} |" for layer, name, text
                 in expected if (layer, name, text) not in rows]
        yield "ARCHITECTURE.md: the table of modules differs from the " \
            f"script's; it should have, in its order, {wrong or ORDER}"
    for name in ORDER:
        if name != "base" and not list((ROOT / "tests" / name).glob("*_test.cpp")):
            yield f"tests/{name}: brigade/{name} has no tests of its own"
    for name in TENSOR_MEMORY_FILES:
        path = ROOT / name
        if not path.exists() or not TENSOR_MEMORY.search(path.read_text()):
            yield f"scripts/check_includes.py: {name} reads no tensor's " \
                "memory any more: remove it from TENSOR_MEMORY_FILES"
    for name, allowed in ALLOWED.items():
        for target in allowed:
            if ORDER.index(target) > ORDER.index(name):
                yield f"scripts/check_includes.py: {name} may include " \
                    f"{target}, which stands below it"


def main():
    if sys.argv[1:] == ["--table"]:
        for layer, modules in MODULES.items():
            for name in modules:
                print(f"{layer:6} {name:18} {included(name)}")
        return 0
    problems = list(table_problems())
    files = 0
    for folder in ("brigade", "cli", "tests", "bench", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
                continue
            name = path.relative_to(ROOT).as_posix()
            if name.startswith("tests/consumer/"):
                continue  # a user's project
            files += 1
            problems += [f"{name}:{number}: {rule}" for number, rule
                         in problems_of(name, path.read_text())]
    for problem in problems:
        print(problem)
    print(f"check_includes: {files} files, {len(problems)} violations")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
