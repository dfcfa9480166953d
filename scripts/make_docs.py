#!/usr/bin/env python3
"""Builds the site: the pages of docs/ and the reference of the public API.

  scripts/make_docs.py [OUTPUT_FOLDER]      # default: build/docs

The public API is what brigade/brigade.h includes, directly or through a header
of Brigade. Doxygen's warnings are errors: a reference that leads nowhere, a
public class, function, type or enumeration that no comment covers. Data members
and accessors may go without one where their names and the class say it all.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
COVERED = re.compile(r"Member (\S+ \(variable\)|operator==.*|\w+\(\) const.*"
                     r"|operator(\*|->)\(\).*) of .* "
                     r"is not documented")


def public_headers(name="brigade/brigade.h", seen=None):
    seen = [] if seen is None else seen
    if name not in seen:
        seen.append(name)
        for included in re.findall(r'#include "(brigade/[^"]+)"',
                                   (ROOT / name).read_text()):
            public_headers(included, seen)
    return seen


def main():
    output = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                          ROOT / "build" / "docs").resolve()
    output.mkdir(parents=True, exist_ok=True)
    pages = sorted(p.relative_to(ROOT).as_posix()
                   for p in (ROOT / "docs").glob("*.md"))
    version = re.search(r"VERSION ([\d.]+)",
                        (ROOT / "CMakeLists.txt").read_text().split("project(")[1])
    headers = public_headers()
    config = (ROOT / "Doxyfile").read_text() + "\n".join([
        f"PROJECT_NUMBER = {version[1]}",
        f'OUTPUT_DIRECTORY = "{output}"',
        "INPUT = " + " ".join(PAGES + pages + headers)])
    result = subprocess.run(["doxygen", "-"], input=config, text=True, cwd=ROOT,
                            stderr=subprocess.PIPE, check=False)
    problems = [line.replace(f"{ROOT}/", "")
                for line in result.stderr.splitlines()
                if line.strip() and not COVERED.search(line)]
    if problems or result.returncode:
        print("\n".join(problems))
        print(f"make_docs: {len(problems)} problems")
        return 1
    print(f"make_docs: {len(PAGES) + len(pages)} pages, {len(headers)} headers: "
          f"{output}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
