#!/usr/bin/env python3
"""Runs clang-tidy (.clang-tidy) over the C++ files that changed.

  scripts/clang_tidy.py BUILD_FOLDER [FILE...]

Changed means: against the merge base with origin/main; on origin/main itself,
or without one, against the commit before; in a clone of one commit, all files.
Takes at most TIDY_SECONDS (default 420), and says how many files it has not
come to. Exits 1 when a check has found something.
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLANG = "clang++-14"
TIDY = "clang-tidy-14"


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, text=True,
                          capture_output=True)
    return done.stdout.split("\n") if done.returncode == 0 else None


def changed_files():
    head = git("rev-parse", "HEAD")
    base = git("merge-base", "HEAD", "origin/main")
    if base is None or base[0] == head[0]:
        base = git("rev-parse", "--verify", "-q", "HEAD~1")
    if base is None:
        return git("ls-files"), "all files"
    # Also what is not committed yet.
    return git("diff", "--name-only", "--diff-filter=d", base[0]), \
        f"changed since {base[0][:7]}"


def sources_of(names):
    """The .cpp files among `names`, and those beside a header among them."""
    sources = []
    for name in names:
        path = pathlib.Path(name)
        # Sources of another project, and of builds with CUDA's headers.
        if name.startswith(("tests/consumer/", "brigade/kernels/cuda/")):
            continue
        if path.suffix == ".h":
            path = path.with_suffix(".cpp")
        if path.suffix == ".cpp" and (ROOT / path).exists():
            sources.append(path.as_posix())
    # The library first: what is left out for lack of time are tests.
    rank = {"brigade": 0, "cli": 1, "examples": 2, "bench": 3, "tests": 4}
    return sorted(set(sources), key=lambda s: (rank.get(s.split("/")[0], 5), s))


def own_includes(build):
    """Folders of headers that single files are compiled with, as MPI's."""
    own = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        name = pathlib.Path(entry["file"]).relative_to(ROOT).as_posix()
        own[name] = [word for word in entry["command"].split()
                     if word.startswith("-I") and str(ROOT) not in word]
    return own


def torch_include(build):
    """Files that are compiled with libtorch, and its flags."""
    files, flags = set(), []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = entry["command"].split()
        found = [words[i + 1] for i, word in enumerate(words[:-1])
                 if word == "-isystem" and "/torch" in words[i + 1]]
        if found:
            files.add(pathlib.Path(entry["file"]).relative_to(ROOT).as_posix())
            for folder in found:
                if folder not in flags:
                    flags += ["-isystem", folder]
            # Which parts of c10d there are.
            flags += [word for word in dict.fromkeys(words)
                      if word.startswith("-DUSE_") and word not in flags]
    return files, flags


def build_pch(build, flags):
    folder = build / "lint"
    folder.mkdir(exist_ok=True)
    header = folder / "pch.h"
    header.write_text(f'#include "{ROOT}/cmake/lint_prelude.h"\n'
                      f'#include "{ROOT}/cmake/pch_torch.h"\n')
    pch = folder / "pch.h.pch"
    subprocess.run([CLANG, "-x", "c++-header", *flags, header, "-o", pch],
                   cwd=ROOT, check=True)
    return pch


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    names, what = (sys.argv[2:], "named") if sys.argv[2:] else changed_files()
    # Without those that this build leaves out, as where MPI or CUDA is missing:
    # their headers are not there.
    own = own_includes(build)
    sources = [name for name in sources_of(names) if name in own]
    if not sources:
        print(f"tidy: no C++ files {what}")
        return 0

    deadline = time.monotonic() + float(os.environ.get("TIDY_SECONDS", "420"))
    plain = ["-std=c++20", "-I.", "-fPIC", "-Wno-everything",
             '-DBRIGADE_SOURCE_DIR=""', '-DBRIGADE_BINARY_DIR=""',
             '-DBRIGADE_VERSION=""', '-DBRIGADE_PROGRAM_FAULTS=""',
             '-DBRIGADE_CMAKE_FOLDER=""', '-DBRIGADE_LIBEXEC=""']
    with_torch, includes = torch_include(build)
    torch = [*plain, "-D_GLIBCXX20_CONSTEXPR=", *includes]
    if with_torch.intersection(sources):
        torch += ["-include-pch", str(build_pch(build, torch))]

    def tidy(source):
        if time.monotonic() > deadline:
            return source, None, ""
        flags = [*(torch if source in with_torch else plain),
                 *own.get(source, [])]
        done = subprocess.run([TIDY, "--quiet", source, "--", *flags],
                              cwd=ROOT, text=True, capture_output=True)
        return source, done.returncode, done.stdout

    found, left = 0, 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for source, status, output in pool.map(tidy, sources):
            if status is None:
                left += 1
            elif status != 0:
                found += 1
                print(f"{source}:\n{output}", flush=True)
    print(f"tidy: {len(sources) - left} files {what}, {found} with findings"
          + (f"; {left} not reached in time" if left else ""))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
