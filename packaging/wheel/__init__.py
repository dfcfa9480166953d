"""Starts the program `brigade` of this wheel; there is no Python binding."""
import importlib.util
import os
import pathlib
import sys


def main():
    here = pathlib.Path(__file__).resolve().parent
    environment = dict(os.environ)
    # Only found, not imported: that takes a second.
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin and not environment.get("BRIGADE_TORCH"):
        environment["BRIGADE_TORCH"] = str(pathlib.Path(torch.origin).parent)
    os.execve("/bin/sh", ["sh", str(here / "start.sh"), "brigade",
                          *sys.argv[1:]], environment)
