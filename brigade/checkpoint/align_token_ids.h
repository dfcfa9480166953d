// Which tokens begin and end a text, of a model that was trained with a
// tokenizer that may say otherwise than its base model's configs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

namespace brigade {

// As align_special_tokens() of transformers' Trainer: config.json and
// generation_config.json get the tokenizer's ids, where it has them; generation
// then ends at the end tokens of before too, and a list of them in `config`
// stays one. Returns whether anything changed.
bool align_token_ids(
    std::optional<int64_t> bos,
    std::optional<int64_t> eos,
    nlohmann::json& config,
    nlohmann::json& generation);

}  // namespace brigade
