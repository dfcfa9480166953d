#!/usr/bin/env python3
"""Trains under faults and holds the result against an undisturbed run.

  scripts/soak.py BUILD_FOLDER [SECONDS]

About every ten seconds, and only once the run has saved since the last time,
something happens to the run: a rank or the supervisor
is killed, ranks are stopped, the run is asked to end, to save or to write its
recordings, the newest checkpoint is damaged. `--max-restarts` and, where the
supervisor itself ended, the same command with checkpoint.load_path=auto bring
it back. In the end losses and weights must equal those of the undisturbed run
bit for bit, and no process, unfinished save, lock or temporary file may be left,
nor may a process have gathered descriptors. Exits 1 otherwise. The goodput is
printed; on a quiet machine SOAK_LEAST_GOODPUT=0.8 makes it part of the verdict.
"""
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

RANKS = 2
MEAN_SECONDS_BETWEEN_FAULTS = 10
# Of a rank that is stopped. One that waits for a processor so long is ended too,
# and begins again.
STEP_TIMEOUT_SECONDS = 5
LEAST_GOODPUT = float(os.environ.get("SOAK_LEAST_GOODPUT", 0))
# Exit codes of a supervisor that ended as it was told to, or was killed.
ENDED = {128 + signal.SIGTERM, -signal.SIGKILL}


def write_config(folder):
    config = {
        "distributed": {"dp_size": RANKS, "use_cpu": True, "timeout_seconds": 60},
        "model": {"config": {
            "model_type": "llama", "hidden_size": 128, "intermediate_size": 384,
            "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 259,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "tie_word_embeddings": False,
            "hidden_act": "silu"}},
        "training": {
            "seq_length": 128, "micro_batch_size": 4, "learning_rate": 1e-3,
            "step_timeout_seconds": STEP_TIMEOUT_SECONDS},
        "dataset": {"name": str(folder / "tokens"), "shuffle": True},
        "checkpoint": {"keep_last": 3},
    }
    path = folder / "run.json"
    path.write_text(json.dumps(config))
    return path


class Run:
    """One run folder, and the supervisor that works on it, if any."""

    def __init__(self, brigade, config, folder, steps, save_every):
        self.folder = folder
        self.command = [
            brigade, "train", "--config", str(config), "--nproc", str(RANKS),
            "--max-restarts", "1000000", f"training.total_train_steps={steps}",
            f"checkpoint.save_frequency={save_every}",
            f"logging.run_dir={folder}", "checkpoint.load_path=auto"]
        self.process = None
        self.was_asked_to_end = False
        # What the supervisor and its ranks keep outside the run folder.
        self.temporary = pathlib.Path(f"{folder}.tmp")
        self.temporary.mkdir()
        self.descriptors = {}  # of each process: the first and the last count
        self.log = open(f"{folder}.log", "ab")

    def start(self):
        self.was_asked_to_end = False
        self.process = subprocess.Popen(
            self.command, stdout=self.log, stderr=self.log,
            env=dict(os.environ, TMPDIR=str(self.temporary)),
            start_new_session=True)

    def ask_to_end(self):
        self.was_asked_to_end = True
        send(self.process.pid, signal.SIGTERM)

    def count_descriptors(self):
        """While the ranks train, so that all of a process's are open."""
        ranks = self.ranks()
        if len(ranks) < RANKS or not self.have_trained(ranks):
            return
        for pid in [self.process.pid, *ranks]:
            with contextlib.suppress(OSError):
                count = len(os.listdir(f"/proc/{pid}/fd"))
                first, _ = self.descriptors.get(pid, (count, count))
                self.descriptors[pid] = first, count

    def have_trained(self, ranks):
        """Whether a step was written since the last of the ranks started."""
        with contextlib.suppress(OSError):
            stats = [pathlib.Path(f"/proc/{pid}/stat").read_text() for pid in ranks]
            # Behind the name, which may hold spaces; field 22 of proc(5).
            ticks = [int(stat.rpartition(")")[2].split()[19]) for stat in stats]
            since_boot = max(ticks) / os.sysconf("SC_CLK_TCK")
            boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
            written = (self.folder / "metrics.jsonl").stat().st_mtime
            return written > boot + since_boot + 0.1
        return False

    def gathered_descriptors(self):
        # A save has a file and a folder open, a new connection may be coming.
        return [f"process {pid} had {first} descriptors, and later {last}"
                for pid, (first, last) in self.descriptors.items()
                if last > first + 4]

    def ranks(self):
        """Processes of the ranks, lowest number first."""
        with contextlib.suppress(OSError):
            children = pathlib.Path(
                f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            pids = [int(pid) for pid in children.read_text().split()]
            return sorted(pid for pid in pids if self.is_rank(pid))
        return []

    def is_rank(self, pid):
        with contextlib.suppress(OSError):
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            return (b"\0RANK=" in b"\0" + environment
                    and str(self.folder).encode()
                    in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())
        return False

    def saves(self):
        """Each complete save so far, one over another's step included."""
        found = set()
        for path in (self.folder / "checkpoints").glob("*/manifest.json"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                found.add((path.parent.name, stat.st_ino, stat.st_mtime_ns))
        return found

    def losses(self):
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [(line["step"], line["loss"]) for line in map(json.loads, lines)]

    def tensors(self, steps):
        """The bytes of all tensors of the last checkpoint, without headers,
        which name the run."""
        result = {}
        for path in sorted(
                (self.folder / "checkpoints" / str(steps)).glob("*.safetensors")):
            data = path.read_bytes()
            result[path.name] = data[8 + int.from_bytes(data[:8], "little"):]
        return result


def send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def damage_newest_checkpoint(run):
    """Flips a bit in the middle of its largest file."""
    folders = [path for path in (run.folder / "checkpoints").glob("*")
               if path.name.isdigit() and (path / "manifest.json").exists()]
    if len(folders) < 2:
        return False
    newest = max(folders, key=lambda path: int(path.name))
    with contextlib.suppress(OSError):
        largest = max(newest.glob("*.safetensors"),
                      key=lambda path: path.stat().st_size)
        with open(largest, "r+b") as file:
            file.seek(largest.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
    return True


def make_faults(run, chance):
    """Name, weight and action of each fault."""
    def a_rank():
        ranks = run.ranks()
        return chance.choice(ranks) if ranks else run.process.pid

    def pause(seconds):
        pid = a_rank()
        send(pid, signal.SIGSTOP)
        time.sleep(seconds)
        send(pid, signal.SIGCONT)

    def damage_and_kill():
        damage_newest_checkpoint(run)
        send(a_rank(), signal.SIGKILL)

    def stop_all():
        for pid in run.ranks():
            send(pid, signal.SIGSTOP)

    return [
        ("kill -9 of a rank", 3, lambda: send(a_rank(), signal.SIGKILL)),
        ("SIGSEGV of a rank", 1, lambda: send(a_rank(), signal.SIGSEGV)),
        ("kill -9 of the supervisor", 1,
         lambda: send(run.process.pid, signal.SIGKILL)),
        ("SIGTERM", 1, run.ask_to_end),
        ("SIGUSR1", 2, lambda: send(run.process.pid, signal.SIGUSR1)),
        ("SIGQUIT", 2, lambda: send(run.process.pid, signal.SIGQUIT)),
        ("a rank paused for a second", 2, lambda: pause(1)),
        ("a rank stopped", 1, lambda: send(a_rank(), signal.SIGSTOP)),
        ("all ranks stopped", 1, stop_all),
        ("a damaged checkpoint and kill -9", 1, damage_and_kill),
    ]


def train_undisturbed(run):
    begin = time.monotonic()
    run.start()
    if run.process.wait() != 0:
        raise SystemExit(f"the undisturbed run failed: see {run.folder}.log")
    return time.monotonic() - begin


def train_under_faults(run, chance):
    """Seconds that it took, and how often each fault came."""
    faults = make_faults(run, chance)
    counts = dict.fromkeys((name for name, _, _ in faults), 0)
    begin = time.monotonic()
    run.start()
    next_fault = begin + 2
    saves = None  # before the last fault
    while True:
        code = run.process.poll()
        if code == 0:
            return time.monotonic() - begin, counts
        if code is not None:
            # A fault just before it was asked to end gives its own code, and
            # nothing restarts what was asked to end.
            if code not in ENDED and not run.was_asked_to_end:
                raise SystemExit(
                    f"the run ended with code {code}: see {run.folder}.log")
            run.start()
        # Faults without a save between could leave no valid checkpoint.
        has_saved = saves is None or run.saves() - saves
        if time.monotonic() >= next_fault and has_saved:
            run.count_descriptors()
            name, _, act = chance.choices(
                faults, [weight for _, weight, _ in faults])[0]
            act()
            counts[name] += 1
            saves = run.saves()
            next_fault = time.monotonic() + chance.expovariate(
                1 / MEAN_SECONDS_BETWEEN_FAULTS)
        time.sleep(0.05)


def leftovers(run):
    found = [str(path) for path in (run.folder / "checkpoints").iterdir()
             if path.name.endswith((".tmp", ".old"))]
    found += [str(path) for path in run.folder.rglob("lock")]
    found += [str(path) for path in run.temporary.iterdir()]
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(run.folder).encode() in (process / "cmdline").read_bytes():
                found.append(f"process {process.name}")
    return found


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    brigade = str(pathlib.Path(sys.argv[1]).resolve() / "brigade")
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 600
    seed = int(os.environ.get("SOAK_SEED", time.time()))
    chance = random.Random(seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="brigade_soak_"))
    text = folder / "text.txt"
    text.write_text("".join(chance.choice("etaoin shrdlu.\n")
                            for _ in range(200000)))
    subprocess.run(
        [brigade, "prepare", "--input", str(text), "--tokenizer", "bytes",
         "--out", str(folder / "tokens")],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    config = write_config(folder)

    # As many steps as the time allows, at the rate of a short run.
    probe_steps = 200
    probe = Run(brigade, config, folder / "probe", probe_steps, probe_steps)
    probe_seconds = train_undisturbed(probe)
    steps = max(300, int(probe_steps / probe_seconds * seconds / 2.3))
    save_every = max(5, int(probe_steps / probe_seconds / 2))  # twice a second
    whole = Run(brigade, config, folder / "whole", steps, save_every)
    whole_seconds = train_undisturbed(whole)
    run = Run(brigade, config, folder / "soaked", steps, save_every)
    soaked_seconds, counts = train_under_faults(run, chance)

    problems = leftovers(run) + run.gathered_descriptors()
    if run.losses() != whole.losses():
        problems.append("the losses differ from those of the undisturbed run")
    if run.tensors(steps) != whole.tensors(steps) or not run.tensors(steps):
        problems.append("the weights or moments differ")
    goodput = whole_seconds / soaked_seconds
    if goodput < LEAST_GOODPUT:
        problems.append(f"the goodput is below {LEAST_GOODPUT}")
    for name, count in counts.items():
        print(f"{count:5d}  {name}")
    print(f"{sum(counts.values())} faults in {soaked_seconds:.0f} s and {steps} "
          f"steps (seed {seed}); undisturbed {whole_seconds:.0f} s: goodput "
          f"{goodput:.2f}")
    for problem in problems:
        print(f"FAILED: {problem}")
    if problems:
        print(f"left for you to see: {folder}")
        return 1
    shutil.rmtree(folder)
    print("losses, weights and moments equal the undisturbed run's bit for bit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
