"""Trains the Llama of tests/model/reference_decoder.py with torch's own AdamW.

  reference_training.py FOLDER OUT

FOLDER holds config.json (Hugging Face's keys), model.safetensors (where
training starts), tokens.bin (uint16), perhaps tokens.mask (docs/files.md) and training.json (steps, sequences,
seq_length, learning_rate, grad_clip). Sample i of a run is the window of
seq_length + 1 tokens at i * seq_length. OUT gets losses F32 [steps], the mean
over a step's tokens that count; gradient.NAME, the clipped gradient of the first step; and
weight.NAME after the last. Exit code 3: this Python has no torch.
"""
import array
import json
import os
import sys

sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "model"))
import reference_decoder as decoder  # exits with 3 where there is no torch
import torch


def main(folder, out):
    def read_json(name):
        with open(f"{folder}/{name}") as file:
            return json.load(file)

    config, training = read_json("config.json"), read_json("training.json")
    params = {name: tensor.float().requires_grad_() for name, tensor in
              decoder.read_safetensors(f"{folder}/model.safetensors").items()}
    with open(f"{folder}/tokens.bin", "rb") as file:
        tokens = torch.tensor(array.array("H", file.read()))
    learned = tokens.clone().long()
    if os.path.exists(f"{folder}/tokens.mask"):
        with open(f"{folder}/tokens.mask", "rb") as file:
            bits = file.read()[32:]
        counts = [bits[i // 8] >> i % 8 & 1 for i in range(len(tokens))]
        learned[torch.tensor(counts) == 0] = -100

    length, sequences = training["seq_length"], training["sequences"]
    optimizer = torch.optim.AdamW(
        params.values(), lr=training["learning_rate"], betas=(0.9, 0.999),
        eps=training["adam_eps"], weight_decay=0.01)
    losses, eval_losses, results = [], [], {}

    def loss_of_windows_from(first):
        starts = [(first + i) * length for i in range(sequences)]
        windows = torch.stack([tokens[s:s + length] for s in starts]).long()
        targets = torch.cat([learned[s + 1:s + length + 1] for s in starts])
        logits = decoder.forward(params, config, windows)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)

    for step in range(training["steps"]):
        loss = loss_of_windows_from(step * sequences)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params.values(), training["grad_clip"])
        if step == 0:
            results.update({f"gradient.{name}": param.grad.clone()
                            for name, param in params.items()})
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % training["eval_every"] == 0:
            with torch.no_grad():
                loss = loss_of_windows_from(training["eval_begin"])
            eval_losses.append(loss.item())
    results.update({f"weight.{name}": p for name, p in params.items()})
    results["losses"] = torch.tensor(losses)
    results["eval_losses"] = torch.tensor(eval_losses)
    decoder.write_safetensors(out, results)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:3])
