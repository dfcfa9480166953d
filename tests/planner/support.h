// Models, machines and trainings that the planner's tests share.
#pragma once

#include <string>

#include "brigade/planner/training.h"

namespace brigade::planner {

inline ModelShape llama_8b() {
  ModelShape shape;
  shape.name = "llama-3-8b";
  shape.layers = 32;
  shape.hidden = 4096;
  shape.heads = 32;
  shape.kv_heads = 8;
  shape.head_dim = 128;
  shape.intermediate = 14336;
  shape.vocab = 128256;
  return shape;
}

// Qwen3-30B-A3B: 128 experts of width 768 in each layer, 8 for a token.
inline ModelShape qwen3_30b_a3b() {
  ModelShape shape;
  shape.name = "qwen3-30b-a3b";
  shape.layers = 48;
  shape.hidden = 2048;
  shape.heads = 32;
  shape.kv_heads = 4;
  shape.head_dim = 128;
  shape.intermediate = 6144;
  shape.vocab = 151936;
  shape.qk_norm = true;
  shape.experts =
      ExpertsConfig{.num_experts = 128, .num_experts_per_tok = 8, .width = 768};
  return shape;
}

inline Training llama_on(const std::string& machine) {
  Training training;
  training.shape = llama_8b();
  training.machine = machine::find_machine(machine);
  training.batch = {.sequence_tokens = 8192, .sequences = 1024};
  return training;
}

}  // namespace brigade::planner
