#!/usr/bin/env python3
"""training.optimizer=muon against torch.optim.Muon for the matrices of the
layers and torch.optim.AdamW for the rest, with every rule for the rate and with
coefficients of one's own. PyTorch's Newton-Schulz is run without its rounding to
bfloat16, in which last bits become hundredths of an update.

    muon_test.py BRIGADE          # see scripts/test_ecosystem.sh
"""
import inspect
import sys
import unittest

try:
    import torch
    import transformers
    from torch.optim import _muon
except ImportError as error:
    print(f"muon_test: skipped: {error}", file=sys.stderr)
    sys.exit(0)

from support import LAYOUTS, TEXT, TestInFolder, run

STEPS, SEQUENCES, LENGTH, RATE, MUON_RATE, DECAY = 20, 4, 32, 3e-3, 2e-2, 0.1
SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
         "vocab_size": 259, "hidden_size": 32, "intermediate_size": 80,
         "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64,
         "tie_word_embeddings": False, "initializer_range": 0.1}
# By name: keys, and torch's arguments.
CASES = {
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


def without_rounding():
    source = inspect.getsource(_muon._zeropower_via_newtonschulz)
    assert source.count("grad.bfloat16()") == 1, "torch.optim.Muon is another"
    exec(source.replace("grad.bfloat16()", "grad.clone()"), vars(_muon))


class Muon(TestInFolder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        without_rounding()
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
             "optimizer": "muon", "muon_learning_rate": MUON_RATE,
             "muon_dtype": "float32",
             "gradient_accumulation_steps": SEQUENCES}, *more)

    def expected(self, start, arguments):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            start, dtype=torch.float32)
        hidden = [p for layer in model.model.layers
                  for p in layer.parameters() if p.dim() == 2]
        rest = [p for p in model.parameters()
                if not any(p is q for q in hidden)]
        optimizers = [
            torch.optim.Muon(hidden, lr=MUON_RATE, weight_decay=DECAY,
                             **arguments),
            torch.optim.AdamW(rest, lr=RATE, weight_decay=DECAY)]
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
        return losses

    def test_training_is_that_of_torch(self):
        # A step of next to no length leaves what training starts from.
        start, _ = self.train("start", "training.learning_rate=1e-30",
                              "training.muon_learning_rate=1e-30",
                              "training.total_train_steps=1")
        run("export", "--run", start, "--out", start / "exported")
        for name, (keys, arguments) in CASES.items():
            expected = self.expected(start / "exported", arguments)
            self.assertLess(expected[-1], expected[0])
            for layout, options in LAYOUTS.items():
                with self.subTest(case=name, layout=layout):
                    _, losses = self.train(f"{name}_{layout}", *options, *keys)
                    self.check_losses(
                        f"{name} {layout}", losses, expected, bound=1e-6)


if __name__ == "__main__":
    unittest.main()
