#!/usr/bin/env python3
"""training.optimizer against torch.optim.Muon for the matrices of the layers and
torch.optim.AdamW for the rest, with every rule for the rate and with
coefficients of one's own; against schedulefree's AdamWScheduleFree; rates against
transformers' schedules; and moments in int8 against bitsandbytes' AdamW8bit. PyTorch's Newton-Schulz is run without
its rounding to bfloat16, in which last bits become hundredths of an update, and
bitsandbytes rounds to the nearest entry of its map, as it does on other devices:
on CPUs it looks up 256 places instead, between which small values are lost.

    optimizers_test.py BRIGADE    # see scripts/test_ecosystem.sh
"""
import inspect
import json
import sys
import unittest

try:
    import bitsandbytes
    import schedulefree
    import torch
    import transformers
    from bitsandbytes.backends.cpu import ops as bitsandbytes_cpu
    from torch.optim import _muon
except ImportError as error:
    print(f"optimizers_test: skipped: {error}", file=sys.stderr)
    sys.exit(0)

from support import LAYOUTS, TEXT, TestInFolder, run

STEPS, SEQUENCES, LENGTH, RATE, MUON_RATE, DECAY = 20, 4, 32, 3e-3, 2e-2, 0.1
SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
         "vocab_size": 259, "hidden_size": 32, "intermediate_size": 80,
         "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64,
         "tie_word_embeddings": False, "initializer_range": 0.1}
MUON = ["training.optimizer=muon", "training.muon_dtype=float32",
        f"training.muon_learning_rate={MUON_RATE}"]
# By name: keys, and torch's arguments.
MUON_CASES = {
    "match_rms_adamw": ([], {"adjust_lr_fn": "match_rms_adamw"}),
    "original": (["training.muon_scale=original"],
                 {"adjust_lr_fn": "original"}),
    "spectral_unclamped": (["training.muon_scale=spectral_unclamped"],
                           {"adjust_lr_fn": "spectral_unclamped"}),
    "coefficients": (
        ["training.muon_coefficients=[2,-1.5,0.5]", "training.muon_steps=8",
         "training.muon_nesterov=false", "training.muon_momentum=0.9"],
        {"adjust_lr_fn": "match_rms_adamw", "ns_coefficients": (2, -1.5, 0.5),
         "ns_steps": 8, "nesterov": False, "momentum": 0.9}),
}
WARMUP = 4
TRANSFORMERS_SCHEDULES = {
    "constant": "constant_with_warmup", "cosine": "cosine", "linear": "linear",
    "inverse_sqrt": "inverse_sqrt", "wsd": "warmup_stable_decay"}
SCHEDULE_FREE_CASES = {
    "schedule_free": ([], {}),
    "schedule_free_warmed_up": (
        ["training.warmup_steps=5", "training.schedule_free_step_power=1"],
        {"warmup_steps": 5, "r": 1}),
}
# Blocks are not those of the whole matrix where tp cuts it.
BLOCK_LAYOUTS = {
    "one": [],
    "dp2_zero1": ["--nproc", "2", "distributed.zero_stage=1",
                  f"training.gradient_accumulation_steps={SEQUENCES // 2}"],
}


def without_rounding():
    source = inspect.getsource(_muon._zeropower_via_newtonschulz)
    assert source.count("grad.bfloat16()") == 1, "torch.optim.Muon is another"
    exec(source.replace("grad.bfloat16()", "grad.clone()"), vars(_muon))


def round_to_nearest(values, code, absmax, codes, block):
    padding = -values.numel() % block
    blocks = torch.nn.functional.pad(
        values.flatten(), (0, padding)).view(-1, block)
    absmax.copy_(blocks.abs().amax(1))
    shares = blocks / absmax.clamp_min(1e-38).unsqueeze(1)
    nearest = (shares.unsqueeze(-1) - code).abs().argmin(-1)
    codes.copy_(nearest.flatten()[:values.numel()].view_as(values))


class Optimizers(TestInFolder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        without_rounding()
        bitsandbytes_cpu._quant_blockwise_fp32_direct = round_to_nearest
        (cls.folder / "text.txt").write_text(f"{TEXT} {TEXT}")
        run("prepare", "--input", cls.folder / "text.txt", "--tokenizer",
            "bytes", "--out", cls.folder / "tokens")
        cls.tokens = torch.frombuffer(
            bytearray((cls.folder / "tokens.bin").read_bytes()),
            dtype=torch.int16).long()

    def train(self, name, *more):
        return self.train_run(
            name, {"model": {"config": SHAPE}}, "tokens",
            {"total_train_steps": STEPS, "learning_rate": RATE,
             "weight_decay": DECAY, "seq_length": LENGTH,
             "gradient_accumulation_steps": SEQUENCES}, *more)

    def start(self):
        """A model in Hugging Face's form, from which every run begins."""
        folder = self.folder / "start"
        if not folder.exists():
            # A step of next to no length leaves what training starts from.
            self.train("start", "training.learning_rate=1e-30",
                       "training.total_train_steps=1")
            run("export", "--run", folder, "--out", folder / "exported")
        return folder / "exported"

    def expected(self, optimizers_of):
        """Losses with what that makes of a model."""
        model = transformers.AutoModelForCausalLM.from_pretrained(
            self.start(), dtype=torch.float32)
        optimizers = optimizers_of(model)
        losses = []
        for step in range(STEPS):
            starts = [(step * SEQUENCES + i) * LENGTH
                      for i in range(SEQUENCES)]
            windows = torch.stack(
                [self.tokens[s:s + LENGTH + 1] for s in starts])
            loss = torch.nn.functional.cross_entropy(
                model(windows[:, :-1]).logits.flatten(0, 1),
                windows[:, 1:].flatten())
            model.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
        self.assertLess(losses[-1], losses[0])
        return losses

    def check(self, name, keys, expected, layouts=None, bound=1e-6):
        for layout, options in (layouts or LAYOUTS).items():
            with self.subTest(case=name, layout=layout):
                _, losses = self.train(f"{name}_{layout}", *options, *keys)
                self.check_losses(f"{name} {layout}", losses, expected, bound)

    def test_muon_is_that_of_torch(self):
        for name, (keys, arguments) in MUON_CASES.items():
            def optimizers(model):
                hidden = [p for layer in model.model.layers
                          for p in layer.parameters() if p.dim() == 2]
                rest = [p for p in model.parameters()
                        if not any(p is q for q in hidden)]
                return [torch.optim.Muon(hidden, lr=MUON_RATE,
                                         weight_decay=DECAY, **arguments),
                        torch.optim.AdamW(rest, lr=RATE, weight_decay=DECAY)]

            self.check(name, MUON + keys, self.expected(optimizers))

    def test_schedule_free_is_its_authors(self):
        for name, (keys, arguments) in SCHEDULE_FREE_CASES.items():
            def optimizers(model):
                made = schedulefree.AdamWScheduleFree(
                    model.parameters(), lr=RATE, weight_decay=DECAY,
                    **arguments)
                made.train()
                return [made]

            self.check(name, ["training.optimizer=schedule_free_adamw"] + keys,
                       self.expected(optimizers))

    def test_rates_after_the_warm_up_are_those_of_transformers(self):
        for ours, theirs in TRANSFORMERS_SCHEDULES.items():
            optimizer = torch.optim.SGD([torch.zeros(1)], lr=RATE)
            schedule = transformers.get_scheduler(
                theirs, optimizer, WARMUP, STEPS,
                {"num_decay_steps": 6, "decay_type": "linear"}
                if ours == "wsd" else None)
            expected = []
            for _ in range(STEPS):
                expected.append(schedule.get_last_lr()[0])
                optimizer.step()
                schedule.step()
            # One step ahead in the warm-up, without a step of rate 0.
            self.assertEqual(expected[0], 0)
            expected[:WARMUP] = expected[1:WARMUP + 1]
            out, _ = self.train(
                f"rates_{ours}", f"training.lr_schedule={ours}",
                f"training.warmup_steps={WARMUP}",
                *(["training.decay_steps=6"] if ours == "wsd" else []))
            lines = (out / "metrics.jsonl").read_text().splitlines()
            for line, rate in zip(lines, expected, strict=True):
                self.assertAlmostEqual(json.loads(line)["lr"], rate, delta=1e-15)

    def test_moments_in_int8_are_those_of_bitsandbytes(self):
        # Last bits of a gradient choose another entry now and then.
        self.check(
            "int8", ["training.optimizer_state_dtype=int8"],
            self.expected(lambda model: [bitsandbytes.optim.AdamW8bit(
                model.parameters(), lr=RATE, weight_decay=DECAY,
                min_8bit_size=1)]),
            BLOCK_LAYOUTS, bound=1e-4)


if __name__ == "__main__":
    unittest.main()
