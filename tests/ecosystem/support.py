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
# Layouts that compute the same as one rank.
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
    """The losses by step."""
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


class TestInFolder(unittest.TestCase):
    """Has `folder`."""

    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)

    def train_run(self, name, groups, dataset, training, *more):
        """A run's folder, and its losses. `groups` are the config's others."""
        out = self.folder / name
        config = self.folder / f"{name}.json"
        config.write_text(json.dumps({
            **groups, "training": training,
            "dataset": {"name": str(self.folder / dataset)},
            "logging": {"run_dir": str(out)}}))
        run("train", "--config", config, *more)
        return out, losses_of(out)

    def stored(self, name):
        """The config's group of a model in a folder of that name."""
        return {"model": {"name": str(self.folder / name),
                          "init": "pretrained"}}

    def check_losses(self, of_what, losses, expected, bound=1e-5):
        """Compares the losses of all steps, relative to the expected ones."""
        self.assertEqual(len(losses), len(expected))
        worst = max(abs(a / b - 1) for a, b in zip(losses, expected))
        print(f"{of_what}: losses of {len(expected)} steps differ by "
              f"{worst:.1e}")
        self.assertLess(worst, bound)
