#!/usr/bin/env python3
"""Finds functions of more than 80 lines outside the kernels.

A function's length is that of its definition, from the line on which it begins
to the one that closes it. Reads braces, not the language, and relies on what
clang-format does with them. EXCEPTIONS names functions that may be longer, with
the reason; one that is no longer needed is a problem too. Prints one line per
problem, exits 1 if there are any.
  scripts/check_sizes.py [ROOT]
"""
import pathlib
import re
import subprocess
import sys

LIMIT = 80
FOLDERS = ("brigade/", "cli/", "bench/", "examples/")
KERNELS = "brigade/kernels/"
# "file:function": why it may be longer.
EXCEPTIONS = {
}

# What braces and semicolons inside do not count.
OPAQUE = re.compile(
    r'R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<!\w)'(?:\\.|[^'\\\n])+'|//[^\n]*|/\*.*?\*/", re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
TYPE = re.compile(r"\b(class|struct|union|enum)\b")
NAME = re.compile(r"(?:[\w~]+(?:<[^()]*>)?::)*(?:operator\s*\S+?|~?\w+)\s*\(")


def blanked(text):
    """The text with literals, comments and directives as spaces."""
    def spaces(match):
        return re.sub(r"[^\n]", " ", match[0])
    return DIRECTIVE.sub(spaces, OPAQUE.sub(spaces, text))


def functions(text):
    """(name, first line, lines) of each function that is defined in `text`."""
    text = blanked(text)
    scopes = []  # of each open brace: "outer", "function" or "other"
    start = 0    # of the declaration that is being read
    parens = 0
    for at, c in enumerate(text):
        outer = all(scope == "outer" for scope in scopes)
        if c in "()":
            parens += 1 if c == "(" else -1
        elif c == "{":
            head = text[start:at]
            # A value in braces follows its type or member without a space.
            is_value = parens > 0 or re.search(r"[\w>]$|=\s*$", head)
            if not outer or is_value:
                scopes.append("other")
                continue
            declaration = re.sub(r"template\s*<.*?>\s*(?=\w)", "", head,
                                 flags=re.DOTALL)
            before_parens = re.sub(r"operator\s*[^\w\s(]+", "operator",
                                   declaration.partition("(")[0])
            if "(" in declaration and "=" not in before_parens and \
                    not re.search(r"\bnamespace\b", before_parens):
                name = NAME.search(declaration)
                first = start + len(head) - len(head.lstrip())
                scopes.append("function")
                current = (name[0].rstrip("( ") if name else "?", first)
            elif TYPE.search(declaration) or "namespace" in declaration or \
                    "extern" in declaration:
                scopes.append("outer")
                start = at + 1
            else:
                scopes.append("other")
        elif c == "}" and scopes:
            scope = scopes.pop()
            if scope == "function":
                first = text.count("\n", 0, current[1])
                last = text.count("\n", 0, at)
                yield current[0], first + 1, last - first + 1
            if scope in ("function", "outer"):
                start = at + 1
        elif c == ";" and outer and parens == 0:
            start = at + 1
        elif c == ":" and outer and re.search(
                r"\b(public|private|protected)\s*$", text[start:at]):
            start = at + 1


def sources(root):
    listed = subprocess.run(["git", "ls-files"], cwd=root, text=True,
                            capture_output=True, check=True).stdout
    for name in listed.split("\n"):
        if name.startswith(FOLDERS) and not name.startswith(KERNELS) and \
                name.endswith((".h", ".cpp")):
            yield name


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                        pathlib.Path(__file__).resolve().parent.parent)
    problems, found, count = [], set(), 0
    for name in sources(root):
        for function, line, lines in functions((root / name).read_text()):
            count += 1
            if lines <= LIMIT:
                continue
            key = f"{name}:{function}"
            found.add(key)
            if key not in EXCEPTIONS:
                problems.append(f"{name}:{line}: {function} has {lines} lines, "
                                f"more than {LIMIT}: split it")
    problems += [f"scripts/check_sizes.py: {key} is no exception any more"
                 for key in EXCEPTIONS if key not in found]
    for problem in problems:
        print(problem)
    print(f"check_sizes: {count} functions, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
