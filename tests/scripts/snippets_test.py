#!/usr/bin/env python3
"""Compiles every C++ snippet of README.md and docs/*.md as it is printed.

A snippet is a block fenced by ```cpp. It becomes the body of a function whose
parameters are what the text around it takes for granted (net, world, batches);
nothing but <brigade/brigade.h> is included, and what the snippet itself
includes. Snippets with the same includes are one translation unit. A compiler's
error names the document and its line.

  tests/scripts/snippets_test.py BUILD_FOLDER
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^ *```cpp\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r"^\s*#\s*include\b.*$", re.MULTILINE)
ITSELF = "#include <brigade/brigade.h>"

AROUND = """
struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x; }
};
TORCH_MODULE(Net);
struct Batch {
  torch::Tensor data, target;
};
torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& target);
"""
PARAMETERS = """
    [[maybe_unused]] Net net,
    [[maybe_unused]] torch::Tensor x,
    [[maybe_unused]] std::vector<Batch> batches,
    [[maybe_unused]] std::vector<Batch> my_batches,
    [[maybe_unused]] std::vector<std::vector<Batch>> steps,
    [[maybe_unused]] double lr,
    [[maybe_unused]] double loss_sum,
    [[maybe_unused]] int64_t count,
    [[maybe_unused]] brigade::World& world,
    [[maybe_unused]] brigade::GradSyncOptions options,
    [[maybe_unused]] brigade::DataParallel<Net>& model,
    [[maybe_unused]] torch::optim::AdamW& optimizer"""


def snippets(path):
    """(first line, text) of each C++ snippet of a document."""
    text = path.read_text()
    for found in FENCE.finditer(text):
        yield text.count("\n", 0, found.start(1)) + 1, found[1]


def units(documents):
    """Translation units of all snippets, and the number of snippets."""
    bodies = {}
    number = 0
    for path in documents:
        for line, text in snippets(path):
            number += 1
            includes = {" ".join(i.split()) for i in INCLUDE.findall(text)}
            bodies.setdefault(tuple(sorted(includes - {ITSELF})), []).append(
                f"void snippet_{number}({PARAMETERS}) {{\n{{\n"
                f'#line {line} "{path.relative_to(ROOT)}"\n'
                f'{INCLUDE.sub("", text)}\n}}\n}}\n')
    return ["\n".join([ITSELF, *includes, AROUND, *functions])
            for includes, functions in bodies.items()], number


def compiler(build):
    """The command that compiles an example of this build, without its source."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if "example_01_data_parallel.dir" not in entry["command"]:
            continue
        words = shlex.split(entry["command"])
        for flag in ("-o", "-c", "-include"):  # the last: precompiled headers
            while flag in words:
                at = words.index(flag)
                del words[at:at + 2]
        return [w for w in words if w != "-Winvalid-pch"], entry["directory"]
    sys.exit(f"snippets_test: {build} compiles no example")


def main():
    build = pathlib.Path(sys.argv[1])
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    sources, number = units(documents)
    if number < 5:
        sys.exit(f"snippets_test: only {number} snippets found: the documents "
                 "are no longer read")
    command, folder = compiler(build)
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        for i, source in enumerate(sources):
            path = pathlib.Path(temporary) / f"snippets_{i}.cpp"
            path.write_text(source)
            failed |= subprocess.run(
                [*command, "-O0", "-w", "-c", path, "-o", path.with_suffix(".o")],
                cwd=folder, check=False).returncode != 0
    print(f"snippets_test: {number} snippets in {len(sources)} units: "
          f"{'some do not compile' if failed else 'all compile'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
