"""Llama and its relatives in plain PyTorch: the oracle of the model's tests.

  reference_decoder.py FOLDER OUT

FOLDER holds config.json (Hugging Face's keys), model.safetensors and
inputs.safetensors with ids and targets, I64 [B, T]; a target of -100 has no
loss. OUT gets logits F32 [B, T, V], loss F32 [] (the sum over the tokens) and
grad.NAME, the loss's gradient by each parameter. Computed in float32. Exit code
3: this Python has no torch.

Nothing here is shared with the library under test: attention is written out
with a mask, rotary embeddings with complex numbers.
"""
import json
import math
import struct
import sys

try:
    import torch
except ImportError:
    sys.exit(3)

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
          "BF16": torch.bfloat16, "I64": torch.int64}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def read_safetensors(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    tensors = {}
    for name, info in header.items():
        begin, end = info["data_offsets"]
        raw = bytearray(data[begin:end])
        tensors[name] = torch.frombuffer(
            raw, dtype=DTYPES[info["dtype"]]).reshape(info["shape"])
    return tensors


def write_safetensors(path, tensors):
    header, blobs, end = {}, [], 0
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        values = tensor.reshape(-1).tolist()
        code = {"F32": "f", "F64": "d", "I64": "q"}[NAMES[tensor.dtype]]
        blob = struct.pack(f"<{len(values)}{code}", *values)
        header[name] = {"dtype": NAMES[tensor.dtype],
                        "shape": list(tensor.shape),
                        "data_offsets": [end, end + len(blob)]}
        blobs.append(blob)
        end += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def is_gemma(config):
    return config["model_type"].startswith("gemma")


def rms_norm(x, weight, config):
    eps = config["rms_norm_eps"]
    scale = 1 + weight if is_gemma(config) else weight
    return scale * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps))


def soft_cap(x, cap):
    """Keeps x between -cap and cap."""
    return x if cap is None else cap * torch.tanh(x / cap)


def slides(config, layer):
    """Whether the layer's queries see a window alone."""
    kind = config["model_type"]
    if is_gemma(config):
        if "layer_types" in config:
            return config["layer_types"][layer] == "sliding_attention"
        period = 2 if kind == "gemma2" else config.get(
            "sliding_window_pattern", 6)
        return layer % period != period - 1
    return kind == "mistral" or bool(config.get("use_sliding_window"))


def inverse_frequencies(config, head_dim, layer, tokens):
    """One per pair of dims, as rope_scaling changes them."""
    theta = config.get("rope_theta", 10000.0)
    scaling = config.get("rope_scaling")
    if scaling and scaling["rope_type"] == "dynamic":
        trained = config["max_position_embeddings"]
        if tokens > trained:
            factor = scaling["factor"]
            theta *= (factor * tokens / trained - (factor - 1)) ** (
                head_dim / (head_dim - 2))
        scaling = None
    if config["model_type"] == "gemma3_text" and slides(config, layer):
        theta, scaling = config["rope_local_base_freq"], None
    frequencies = [theta ** (-2.0 * i / head_dim) for i in range(head_dim // 2)]
    if not scaling:
        return frequencies
    if scaling["rope_type"] == "linear":
        return [frequency / scaling["factor"] for frequency in frequencies]
    if scaling["rope_type"] == "yarn":
        return yarn(frequencies, theta, head_dim, scaling)
    assert scaling["rope_type"] == "llama3"
    factor = scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original = scaling["original_max_position_embeddings"]
    scaled = []
    for frequency in frequencies:
        turns = original * frequency / (2 * math.pi)
        if turns < low:
            scaled.append(frequency / factor)
        elif turns > high:
            scaled.append(frequency)
        else:
            smooth = (turns - low) / (high - low)
            scaled.append((1 - smooth) * frequency / factor
                          + smooth * frequency)
    return scaled


def yarn(frequencies, theta, head_dim, scaling):
    """Dims that turn often within what was trained are kept."""
    def dim_that_turns(times):
        trained = scaling["original_max_position_embeddings"]
        # theta ** (-dim / head_dim * 2) * trained == times * 2 pi
        return math.log(trained / (2 * math.pi * times), theta) * head_dim / 2
    low = dim_that_turns(scaling.get("beta_fast", 32))
    high = dim_that_turns(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    mixed = []
    for i, frequency in enumerate(frequencies):
        divided = min(max((i - low) / (high - low), 0), 1)
        mixed.append(frequency * (1 - divided)
                     + frequency / scaling["factor"] * divided)
    return mixed


def magnitude(config):
    """What cos and sin are multiplied by."""
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") != "yarn":
        return 1.0
    return scaling.get("attention_factor",
                       0.1 * math.log(scaling["factor"]) + 1)


def rotate(x, config, layer):
    """x [B, H, T, D]: pair i is (x[i], x[i + D/2]), a complex number turned."""
    rotated = int(x.shape[-1] * config.get("partial_rotary_factor", 1))
    if rotated < x.shape[-1]:
        whole = {**config, "partial_rotary_factor": 1}
        return torch.cat([rotate(x[..., :rotated], whole, layer),
                          x[..., rotated:]], dim=-1)
    head_dim, tokens = x.shape[-1], x.shape[-2]
    angles = torch.outer(
        torch.arange(tokens, dtype=torch.float64),
        torch.tensor(inverse_frequencies(config, head_dim, layer, tokens),
                     dtype=torch.float64))
    turn = torch.polar(
        torch.full_like(angles, magnitude(config)), angles)
    pairs = torch.complex(x[..., :head_dim // 2].double(),
                          x[..., head_dim // 2:].double()) * turn
    return torch.cat([pairs.real, pairs.imag], dim=-1).to(x.dtype)


def attention(x, p, config, layer):
    batch, tokens, _ = x.shape
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads

    def project(name, count):
        y = x @ p[f"{name}_proj.weight"].T
        if f"{name}_proj.bias" in p:
            y = y + p[f"{name}_proj.bias"]
        y = y.view(batch, tokens, count, head_dim)
        if config["model_type"] == "olmoe" and name != "v":
            y = rms_norm(y.flatten(2), p[f"{name}_norm.weight"],
                         config).view_as(y)
        elif f"{name}_norm.weight" in p:
            y = rms_norm(y, p[f"{name}_norm.weight"], config)
        return y.transpose(1, 2)

    q = rotate(project("q", heads), config, layer)
    k = rotate(project("k", kv_heads), config, layer)
    v = project("v", kv_heads)
    k = k.repeat_interleave(heads // kv_heads, dim=1)
    v = v.repeat_interleave(heads // kv_heads, dim=1)
    divisor = config.get("query_pre_attn_scalar", head_dim)
    scores = soft_cap(q @ k.transpose(2, 3) / math.sqrt(divisor),
                      config.get("attn_logit_softcapping"))
    query = torch.arange(tokens)[:, None]
    key = torch.arange(tokens)[None, :]
    hidden = key > query
    window = config.get("sliding_window")
    if window and slides(config, layer):
        hidden = hidden | (key <= query - window)
    scores = scores.masked_fill(hidden, float("-inf"))
    out = (torch.softmax(scores, -1) @ v).transpose(1, 2)
    out = out.reshape(batch, tokens, heads * head_dim) @ p["o_proj.weight"].T
    return out + p["o_proj.bias"] if "o_proj.bias" in p else out


def activation(x, config):
    if not is_gemma(config):
        return x * torch.sigmoid(x)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)
    return 0.5 * x * (1 + torch.tanh(inner))


def mlp(x, p, config):
    def linear(y, name):
        y = y @ p[f"{name}_proj.weight"].T
        return y + p[f"{name}_proj.bias"] if f"{name}_proj.bias" in p else y

    gate = activation(linear(x, "gate"), config)
    return linear(gate * linear(x, "up"), "down")


def deepseek_router(row, p, config):
    """The experts of a token and their weights: DeepSeek-V3's router."""
    scores = torch.sigmoid(p["gate.weight"] @ row)
    ranked = (scores + p["gate.e_score_correction_bias"]).tolist()
    count, groups = len(ranked), config.get("n_group", 1)
    size = count // groups

    def best_two(group):
        return sum(sorted(ranked[group * size:(group + 1) * size])[-2:])

    open_groups = sorted(range(groups), key=best_two)[
        -config.get("topk_group", 1):]
    order = sorted((e for e in range(count) if e // size in open_groups),
                   key=lambda e: -ranked[e])
    chosen = order[:config["num_experts_per_tok"]]
    total = 1.0
    if config["norm_topk_prob"]:
        total = sum(scores[e] for e in chosen) + 1e-20
    factor = config.get("routed_scaling_factor", 1.0)
    return [(e, scores[e] / total * factor) for e in chosen]


def experts(x, p, config):
    """Token by token, each through its experts one after the other."""
    mixtral = config["model_type"] == "mixtral"
    per_token = config["num_experts_per_tok"]
    names = (("gate", "w1"), ("up", "w3"), ("down", "w2"))

    def expert(index, row):
        prefix = f"experts.{index}."
        own = {key[len(prefix):]: value for key, value in p.items()
               if key.startswith(prefix)}
        if mixtral:
            own = {f"{usual}_proj.weight": own[f"{name}.weight"]
                   for usual, name in names}
        return mlp(row, own, config)

    rows = []
    for row in x.flatten(0, 1):
        if "gate.e_score_correction_bias" in p:
            shared = {key[len("shared_experts."):]: value
                      for key, value in p.items()
                      if key.startswith("shared_experts.")}
            rows.append(mlp(row, shared, config) + sum(
                weight * expert(e, row)
                for e, weight in deepseek_router(row, p, config)))
            continue
        scores = torch.softmax(p["gate.weight"] @ row, 0)
        order = sorted(range(len(scores)), key=lambda e: -scores[e].item())
        chosen = order[:per_token]
        total = 1.0
        if mixtral or config.get("norm_topk_prob"):
            total = sum(scores[e] for e in chosen)
        out = sum(scores[e] / total * expert(e, row) for e in chosen)
        if "shared_expert.up_proj.weight" in p:
            shared = {key[len("shared_expert."):]: value
                      for key, value in p.items()
                      if key.startswith("shared_expert.")}
            weight = torch.sigmoid(p["shared_expert_gate.weight"] @ row)
            out = out + weight * mlp(row, shared, config)
        rows.append(out)
    return torch.stack(rows).view_as(x)


def feed_forward(x, part, config):
    """`part` gives the parameters below a name of the layer."""
    for block in ("mlp.", "block_sparse_moe."):
        p = part(block)
        if "gate.weight" in p:
            return experts(x, p, config)
    return mlp(x, part("mlp."), config)


def forward(params, config, ids):
    embedding = params["model.embed_tokens.weight"]
    x = embedding[ids]
    if is_gemma(config):
        x = x * math.sqrt(config["hidden_size"])
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."

        def part(name, prefix=prefix):
            return {key[len(prefix + name):]: value
                    for key, value in params.items()
                    if key.startswith(prefix + name)}

        def norm(y, name, norms=part("")):
            return rms_norm(y, norms[f"{name}_layernorm.weight"], config)

        mixed = attention(
            norm(x, "input"), part("self_attn."), config, layer)
        if is_gemma(config):
            x = x + norm(mixed, "post_attention")
            mixed = mlp(norm(x, "pre_feedforward"), part("mlp."), config)
            x = x + norm(mixed, "post_feedforward")
        else:
            x = x + mixed
            x = x + feed_forward(norm(x, "post_attention"), part, config)
    x = rms_norm(x, params["model.norm.weight"], config)
    tied = config.get("tie_word_embeddings", is_gemma(config))
    logits = x @ (embedding if tied else params["lm_head.weight"]).T
    return soft_cap(logits, config.get("final_logit_softcapping"))


def main(folder, out):
    with open(f"{folder}/config.json") as file:
        config = json.load(file)
    params = {name: tensor.float().requires_grad_() for name, tensor in
              read_safetensors(f"{folder}/model.safetensors").items()}
    inputs = read_safetensors(f"{folder}/inputs.safetensors")
    logits = forward(params, config, inputs["ids"])
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), inputs["targets"].flatten(),
        ignore_index=-100, reduction="sum")
    loss.backward()
    results = {"logits": logits, "loss": loss}
    for name, param in params.items():
        if param.grad is not None:
            results[f"grad.{name}"] = param.grad
    write_safetensors(out, results)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:3])
