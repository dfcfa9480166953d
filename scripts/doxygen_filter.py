#!/usr/bin/env python3
"""Doxygen's input filter: what this project writes, as Doxygen reads it.

Headers carry plain // comments, and Markdown pages link as on a code host.
  header   a comment documents the declaration after it and the overloads that
           follow that; a comment at the end of a line documents that line;
           the comment before #pragma once documents the file, and the class
           after which the file is named unless that has one of its own;
           constructors and operator== belong to what is said of their class
  page     headings get the anchors that links name; a link to a file that is
           no page of the site becomes its path
Lines keep their numbers, so that warnings point to the right place.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = re.compile(r"^( *)//(?!/) ?(.*)$")
STRING = re.compile(r'"(\\.|[^"\\])*"')


def escaped(text):
    """The text of a comment with nothing in it that Doxygen would interpret."""
    text = text.replace("\\", "\\\\").replace("@", "\\@")
    text = text.replace("&", "\\&").replace("<", "\\<").replace(">", "\\>")
    text = text.replace("#", "\\#").replace("%", "\\%").replace("*", "\\*")
    # A name with :: or () links where Doxygen knows it, and stays text else.
    return text.replace("|", "\\|").replace("~", "\\~").replace("$", "\\$")


def block(lines):
    """A // comment as Doxygen's Markdown: deeper lines are shown as written."""
    out, literal = [], False
    for line in lines:
        deep = line.startswith("  ") and not re.match(r" {2,4}[*-] ", line)
        if deep and not literal:
            out.append("@verbatim " + line)
            literal = True
        elif literal and not deep and line:
            out[-1] += " @endverbatim"
            out.append(escaped(line))
            literal = False
        else:
            out.append(line if literal else escaped(line))
    if literal:
        out[-1] += " @endverbatim"
    return out


def trailing(line):
    """The code before a comment at the end of a line, and the comment; or None."""
    blanked = STRING.sub(lambda text: "_" * len(text[0]), line)
    found = re.match(r"^(.*[;,{}\w)=]) +// ", blanked)
    if not found or "//" in found[1] or "// NOLINT" in line:
        return None
    return line[:len(found[1])], line[len(found[0]):]


def paragraph(lines):
    """The first paragraph of a comment."""
    for number, line in enumerate(lines):
        if not CODE.match(line)[2]:
            return lines[:number]
    return lines


def declaration_end(lines, begin):
    """The index after the declaration that begins at a line."""
    depth = 0
    for index in range(begin, len(lines)):
        code = re.sub(r"//.*", "", STRING.sub('""', lines[index]))
        depth += sum(code.count(c) for c in "({") - sum(code.count(c) for c in ")}")
        if depth <= 0 and re.search(r"[;},]\s*$", code):
            return index + 1
    return len(lines)


def is_declaration(line):
    return line.strip() and not re.match(
        r"\s*(//|#(?!define\b)|\}|(public|private|protected):|namespace\b|using namespace\b)",
        line)


def header(text, name):
    lines = text.split("\n")
    out = list(lines)
    named_class = pathlib.Path(name).stem.replace("_", "")
    about, classes = "", []
    trailing_column = None
    index = 0
    while index < len(lines):
        comment = CODE.match(lines[index])
        if comment and trailing_column == lines[index].index("//"):
            out[index] = f"{comment[1]}///< {escaped(comment[2])}"
            index += 1
            continue
        trailing_column = None
        if comment:
            end = index
            while end < len(lines) and CODE.match(lines[end]):
                end += 1
            words = block([CODE.match(line)[2] for line in lines[index:end]])
            at_top = index == 0
            if at_top:
                about = " ".join(escaped(CODE.match(line)[2])
                                 for line in paragraph(lines[index:end]))
                # Its last line takes the place of #pragma once.
                words.insert(0, f"@file {name}")
                end += "#pragma once" in lines[end]
            documented = end < len(lines) and is_declaration(lines[end])
            if at_top or documented:
                for offset, word in enumerate(words):
                    out[index + offset] = f"{comment[1]}/// {word}"
            if documented and not at_top:
                share(lines, out, end, words)
            index = end
            continue
        declared = re.match(r"\s*(?:class|struct)(?: \[\[\w+\]\])? (\w+)[^;]*$",
                            lines[index])
        if declared:
            classes.append(declared[1])
            # Not where a comment stands before it, or before its template<>.
            before = lines[index - 1]
            if declared[1].lower() == named_class and not before.strip():
                out[index] = f"/** {about} */ {lines[index]}"
            elif declared[1].lower() == named_class and before.startswith("template") \
                    and not lines[index - 2].strip():
                out[index - 1] = f"/** {about} */ {before}"
        elif classes and not lines[index - 1].strip().startswith("//") and (
                re.match(rf"\s*(explicit )?({'|'.join(classes)})\(", lines[index])
                or re.match(r"\s*(bool|auto) operator(==|<=>)\(", lines[index])):
            out[index] = f"/** As the class says. */ {lines[index].lstrip()}"
        behind = trailing(lines[index])
        if behind:
            out[index] = f"{behind[0]}  ///< {escaped(behind[1])}"
            trailing_column = len(lines[index]) - len(behind[1]) - 3
        index += 1
    # Doxygen takes the braces in ": Base(std::vector<T>{x}) {}" for a body.
    return re.sub(r">\{(\w*)\}\)", r">(\1))", "\n".join(out))


def function_name(line):
    found = re.search(r"(\w+)\(", line)
    return found and found[1]


def share(lines, out, begin, words):
    """One comment for the overloads that follow each other without a gap."""
    name = function_name(lines[begin])
    if not name or re.match(r"\s*(class|struct|enum|template)\b", lines[begin]):
        return
    inline = " ".join(words)
    if "verbatim" in inline:
        inline = words[0]
    index = declaration_end(lines, begin)
    while index < len(lines) and is_declaration(lines[index]):
        if function_name(lines[index]) == name and not trailing(lines[index]):
            indent = re.match(r" *", lines[index])[0]
            out[index] = f"{indent}/** {inline} */ {lines[index].lstrip()}"
        index = declaration_end(lines, index)


def slug(heading):
    words = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def page_id(path):
    return "page_" + re.sub(r"\W", "_", path.relative_to(ROOT).with_suffix("").as_posix())


def page(text, path):
    out, fenced, first = [], False, True
    for line in text.split("\n"):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            heading = re.match(r"(#+) (.*)$", line)
            if heading:
                label = page_id(path)
                if not first:
                    label += "_" + re.sub(r"\W", "_", slug(heading[2]))
                line = f"{heading[1]} {heading[2]} {{#{label}}}"
                first = False
            else:
                line = re.sub(r"(!?)\[([^\]]+)\]\(([^)\s]+)\)",
                              lambda link: linked(link, path), line)
                line = "`".join(
                    part if number % 2 else
                    re.sub(r"<(?!http)([\w.]+)>", r"&lt;\1&gt;", part)
                    for number, part in enumerate(line.split("`")))
        out.append(line)
    return "\n".join(out)


def linked(link, path):
    bang, words, target = link.groups()
    if bang or re.match(r"\w+:", target) or target.startswith("<"):
        return link[0]
    name, _, anchor = target.partition("#")
    other = (path.parent / name).resolve() if name else path
    if other.suffix != ".md":
        relative = other.relative_to(ROOT).as_posix()
        plain = words.strip("`")
        return f"`{plain}`" if plain == relative else f"{words} (`{relative}`)"
    label = page_id(other)
    if anchor:
        label += "_" + re.sub(r"\W", "_", anchor)
    return f"[{words}](@ref {label})"


def main():
    path = pathlib.Path(sys.argv[1]).resolve()
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        print(page(text, path), end="")
    else:
        print(header(text, path.relative_to(ROOT).as_posix()), end="")


if __name__ == "__main__":
    main()
