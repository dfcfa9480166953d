"""The same as reference_decoder.py, computed by Hugging Face's transformers.

  transformers_model.py FOLDER OUT

Exit code 3: this Python has no torch or no transformers.
"""
import json
import sys

try:
    import torch
    import transformers
except ImportError:
    sys.exit(3)

import re

from reference_decoder import read_safetensors, write_safetensors


def is_mixture(config):
    return config["model_type"] in ("mixtral", "qwen2_moe", "qwen3_moe",
                                    "olmoe", "dots1", "glm4_moe")


def expert_gradients(name, gradient, kind):
    """Of all experts of a layer together: by the names of the files."""
    match = re.fullmatch(r"(.*\.)mlp\.experts\.(gate_up|down)_proj", name)
    if not match:
        if kind == "mixtral":
            name = name.replace(".mlp.", ".block_sparse_moe.")
        yield name, gradient
        return
    layer, which = match.groups()
    gate, up, down = "gate_proj", "up_proj", "down_proj"
    block = "mlp"
    if kind == "mixtral":
        gate, up, down, block = "w1", "w3", "w2", "block_sparse_moe"
    for i, rows in enumerate(gradient):
        prefix = f"{layer}{block}.experts.{i}."
        if which == "down":
            yield f"{prefix}{down}.weight", rows
            continue
        half = len(rows) // 2
        yield f"{prefix}{gate}.weight", rows[:half]
        yield f"{prefix}{up}.weight", rows[half:]


def load(folder):
    with open(f"{folder}/config.json") as file:
        values = json.load(file)
    if is_mixture(values):
        # Which brings the experts' tensors together.
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32), values
    config = transformers.AutoConfig.for_model(
        values["model_type"],
        **{key: value for key, value in values.items() if key != "model_type"})
    # A padding token's row would get no gradient.
    config.pad_token_id = None
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager")
    weights = read_safetensors(f"{folder}/model.safetensors")
    missing, surplus = model.load_state_dict(weights, strict=False)
    assert not surplus, surplus
    tied = ["lm_head.weight"] if config.tie_word_embeddings else []
    assert list(missing) == tied, missing
    return model.float(), values


def main(folder, out):
    model, config = load(folder)
    inputs = read_safetensors(f"{folder}/inputs.safetensors")
    logits = model(input_ids=inputs["ids"], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), inputs["targets"].flatten(),
        ignore_index=-100, reduction="sum")
    loss.backward()
    results = {"logits": logits, "loss": loss}
    for name, parameter in model.named_parameters():
        for own, gradient in expert_gradients(
                name, parameter.grad, config["model_type"]):
            results[f"grad.{own}"] = gradient
    write_safetensors(out, results)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:3])
