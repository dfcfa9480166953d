"""What the tests of the Python ecosystem have in common: the program that is
their first argument, and a folder that is gone after them.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

BRIGADE = pathlib.Path(sys.argv.pop(1)).resolve()
TEXT = " ".join(
    f"{a} {b} the {c}."
    for a in ("Once", "Then", "Here", "Now")
    for b in ("upon", "walked", "stood", "slept", "sang")
    for c in ("fox", "river", "old mill", "lantern", "quiet town"))
# Layouts that compute what one rank does.
LAYOUTS = {
    "one": [],
    "tp2_pp2": ["--nproc", "4", "distributed.tp_size=2",
                "distributed.pp_size=2"],
}


def run(*arguments):
    """What a command prints; an error where it fails."""
    result = subprocess.run(
        [BRIGADE, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode != 0:
        raise AssertionError(f"brigade {arguments}: {result.stderr}")
    return result.stdout


def losses_of(run_folder):
    """By step."""
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


class TestInFolder(unittest.TestCase):
    """Has `folder`."""

    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)
