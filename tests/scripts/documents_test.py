#!/usr/bin/env python3
"""Tests of the scripts that hold and draw the documents: each rule of
check_docs.py finds its fault in a made-up repository, the Doxygen filter keeps
its promises, and draw_loss.py draws every step.

  tests/scripts/documents_test.py
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, SCRIPTS / script, *map(str, arguments)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)


class CheckDocs(unittest.TestCase):
    def check(self, **files):
        """The lines that check_docs.py prints for a repository of such files."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            subprocess.run(["git", "init", "-q", root], check=True)
            written = {"README.md": "# A\n\n## More\n",
                       "docs/there.md": "# There\n\n## A `code` heading\n",
                       "brigade/ops/linear.h": "// Fine.\n"}
            written.update({name.replace("__", "/").replace("_md", ".md")
                            .replace("_h", ".h"): text
                            for name, text in files.items()})
            for name, text in written.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return run("check_docs.py", root).stdout

    def test_a_sound_repository_has_no_problems(self):
        self.assertIn("3 documents, 0 problems", self.check(
            docs__page_md="[a](there.md#a-code-heading) `brigade/ops/linear.h`"
                          " brigade/ops/linear [w](https://x.org/y) NAME.cpp"))

    def test_links_lead_to_files_and_headings(self):
        found = self.check(docs__page_md="[a](gone.md)\n[b](there.md#gone)\n"
                                         "```\n[c](in_code.md)\n```\n")
        self.assertIn("docs/page.md:1: link to gone.md: no such file", found)
        self.assertIn("docs/page.md:2: link to there.md#gone: no such heading",
                      found)
        self.assertNotIn("in_code", found)

    def test_paths_exist_except_in_the_log(self):
        text = "`brigade/ops/gone.h` `tests/MODULE/NAME_test.cpp`"
        self.assertIn("docs/page.md:1: brigade/ops/gone.h does not exist",
                      self.check(docs__page_md=text))
        self.assertIn("0 problems", self.check(docs__log_md=text))

    def test_architecture_may_leave_out_brigade(self):
        found = self.check(ARCHITECTURE_md="`ops/linear.h` `ops/gone.h`")
        self.assertIn("ARCHITECTURE.md:1: brigade/ops/gone.h does not exist", found)
        self.assertIn("1 problems", found)

    def test_the_readme_is_short(self):
        self.assertIn("README.md:1: 701 words before", self.check(
            README_md="word " * 701 + "\n## More\n" + "word " * 100))
        self.assertIn("0 problems", self.check(
            README_md="word " * 700 + "\n## More\n" + "word " * 100))

    def test_phrases_count_in_text_comments_and_messages_alone(self):
        bad = " a ".join(("one", "bucket"))
        self.assertIn("docs/page.md:1:", self.check(docs__page_md=bad))
        self.assertIn("brigade/x.h:1:", self.check(brigade__x_h=f"int x;  // {bad}"))
        self.assertIn("brigade/x.h:1:", self.check(brigade__x_h=f'f("{bad}");'))
        self.assertIn("0 problems", self.check(brigade__x_h="one a = bucket;"))


class Filter(unittest.TestCase):
    def filtered(self, text, name="brigade/base/units.h"):
        """What Doxygen reads where the file has this text."""
        sys.path.insert(0, str(SCRIPTS))
        import doxygen_filter  # pylint: disable=import-outside-toplevel
        return doxygen_filter.header(text, name)

    def test_a_comment_documents_overloads_and_lines_keep_their_numbers(self):
        text = ("// A file.\n#pragma once\n\n// Of <x>.\nint f();\nint f(int x);\n"
                "int g();\n\nint h();")
        lines = self.filtered(text).split("\n")
        self.assertEqual(len(lines), len(text.split("\n")))
        self.assertEqual(lines[3], "/// Of \\<x\\>.")
        self.assertEqual(lines[5], "/** Of \\<x\\>. */ int f(int x);")
        self.assertEqual(lines[6:], ["int g();", "", "int h();"])

    def test_comments_behind_code_document_their_line(self):
        self.assertEqual(
            self.filtered("#pragma once\nint a = 0;  // first\n            // more"),
            "#pragma once\nint a = 0;  ///< first\n            ///< more")

    def test_comments_in_strings_and_sections_are_left_alone(self):
        text = ("#pragma once\nauto a = \"x // y\";\n private:\n"
                "void f(int x)  // NOLINT\n")
        self.assertEqual(self.filtered(text), text)


class DrawLoss(unittest.TestCase):
    def draw(self, rows):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "metrics.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            return run("draw_loss.py", path)

    def test_every_step_and_evaluation_is_drawn(self):
        picture = self.draw([{"step": 1, "loss": 4.0}, {"step": 2, "loss": 3.0},
                             {"step": 3, "loss": 2.0, "eval_loss": 2.5}]).stdout
        points = re.search(r'points="([^"]*)"', picture)[1].split()
        heights = [float(point.split(",")[1]) for point in points]
        self.assertEqual(len(heights), 3)
        self.assertAlmostEqual(heights[1] - heights[0], heights[2] - heights[1], 0)
        self.assertIn("step 3: 2.500", picture)

    def test_one_step_is_no_curve(self):
        result = self.draw([{"step": 1, "loss": 4.0}])
        self.assertEqual(result.returncode, 1)
        self.assertIn("a curve needs two steps, but there are 1", result.stderr)


if __name__ == "__main__":
    unittest.main()
