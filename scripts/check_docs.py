#!/usr/bin/env python3
"""Holds the documents against the repository.

  links    a relative link leads to a file, and its anchor to a heading there
  paths    a path of the repository that a document names exists; in
           ARCHITECTURE.md also one that begins with a module
  length   README.md has at most 700 words before "## More"
  phrases  documents, comments and messages keep clear of words that only their
           author understands

docs/log.md and CHANGELOG.md describe the past and may name what is gone. Prints
one line per problem, exits 1 if there are any.
  scripts/check_docs.py [ROOT]
"""
import pathlib
import re
import subprocess
import sys

PAST = ("docs/log.md", "CHANGELOG.md")
README_WORDS = 700
TOP = r"(?:brigade|cli|tests|bench|examples|docs|scripts|cmake|packaging|\.ci)"
PATH = re.compile(rf"(?<![\w./-])({TOP}/[\w./*-]*[\w*/])")
PHRASES = re.compile(
    r"\b(is|are|be|was|were) told\b|\btells? (of|apart)\b|\bof what\b"
    r"|\b(one|two|tokens|bytes|ms|elements?) a (rank|bucket|step|stage|layer"
    r"|token|file|line|parameter|key|micro-batch)\b|\b(the|a) (room|house)\b")


def slug(heading):
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    words = re.sub(r"[^\w\- ]", "", words.lower())
    return words.replace(" ", "-")


def without_code(text):
    """The text with its fenced blocks emptied, line by line."""
    out, fenced = [], False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            line = ""
        out.append("" if fenced else line)
    return out


def anchors(path):
    return {slug(m[1]) for m in map(re.compile(r"#+ (.*)").match,
                                    without_code(path.read_text())) if m}


def exists(root, name):
    """Whether a path, one without its ending, or one with a * inside is there."""
    if any(re.search(r"[A-Z]{4}", part) for part in name.split("/")):
        return True  # stands for any name: NAME.cpp, MODULE/*.cpp
    name = re.sub(r"\*{2,}", "", name).rstrip("/.*")
    return any(root.glob(name)) or any(root.glob(name + ".*"))


def link_problems(root, path):
    for number, line in enumerate(without_code(path.read_text()), 1):
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            if re.match(r"\w+:", target):
                continue
            name, _, anchor = target.partition("#")
            other = path.parent / name if name else path
            if not other.exists():
                yield number, f"link to {target}: no such file"
            elif anchor and anchor not in anchors(other):
                yield number, f"link to {target}: no such heading"


def path_problems(root, path):
    modules = "|".join(sorted(
        (p.name for p in (root / "brigade").iterdir() if p.is_dir()),
        key=len, reverse=True)) or "-"
    short = re.compile(rf"`((?:{modules})/[\w./*-]*\w)`")
    for number, line in enumerate(path.read_text().split("\n"), 1):
        for name in PATH.findall(line):
            if not exists(root, name):
                yield number, f"{name} does not exist"
        if path.name == "ARCHITECTURE.md":
            for name in short.findall(line):
                if not exists(root / "brigade", name) and not exists(root, name):
                    yield number, f"brigade/{name} does not exist"


def length_problems(root):
    readme = root / "README.md"
    words = len(readme.read_text().split("\n## More")[0].split())
    if words > README_WORDS:
        yield 1, f"{words} words before \"## More\", at most {README_WORDS}"


def phrase_problems(path):
    for number, line in enumerate(path.read_text().split("\n"), 1):
        if path.suffix in (".h", ".cpp"):
            line = " ".join(re.findall(r"//.*|\"(?:\\.|[^\"\\])*\"", line))
        found = PHRASES.search(line)
        if found:
            yield number, f"\"{found[0]}\": say it in plain English"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                        pathlib.Path(__file__).resolve().parent.parent)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=root, text=True,
        stdout=subprocess.PIPE, check=False).stdout.split()
    documents = [root / name for name in listed if name.endswith(".md")]
    problems = [("README.md", *p) for p in length_problems(root)]
    for path in documents:
        name = path.relative_to(root).as_posix()
        found = list(link_problems(root, path))
        if name not in PAST:
            found += path_problems(root, path)
        problems += [(name, *problem) for problem in found]
    for name in listed:
        path = root / name
        if path.suffix in (".md", ".h", ".cpp") and name not in PAST \
                and path.exists():
            problems += [(name, *problem) for problem in phrase_problems(path)]
    for name, number, what in problems:
        print(f"{name}:{number}: {what}")
    print(f"check_docs: {len(documents)} documents, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
