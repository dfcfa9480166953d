#include "brigade/planner/model_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace brigade::planner {
namespace {

using Json = nlohmann::json;
using Problems = std::vector<std::string>;

constexpr int64_t kMostSize = int64_t{1} << 24;

int64_t positive(
    const Json& json,
    const char* key,
    const std::string& pointer,
    Problems& problems) {
  const auto found = json.find(key);
  if (found != json.end() && found->is_number_integer() &&
      found->get<int64_t>() >= 1 && found->get<int64_t>() <= kMostSize)
    return found->get<int64_t>();
  problems.push_back(fmt::format(
      "{}/{}: expected an integer from 1 to {}{}",
      pointer,
      key,
      kMostSize,
      found == json.end() ? ", but it is missing"
                          : ", not " + found->dump().substr(0, 40)));
  return 1;
}

// transformers' GPT2Config; n_inner may be null, which means 4 n_embd.
ModelFile parse_gpt2(
    const Json& json,
    const std::string& name,
    const std::string& pointer,
    Problems& problems) {
  GptSizes sizes;
  sizes.layers = static_cast<int>(positive(json, "n_layer", pointer, problems));
  sizes.hidden = positive(json, "n_embd", pointer, problems);
  sizes.heads = positive(json, "n_head", pointer, problems);
  sizes.vocab = positive(json, "vocab_size", pointer, problems);
  sizes.positions = positive(json, "n_positions", pointer, problems);
  const auto inner = json.find("n_inner");
  sizes.intermediate = inner == json.end() || inner->is_null()
                           ? 4 * sizes.hidden
                           : positive(json, "n_inner", pointer, problems);
  if (sizes.hidden % sizes.heads != 0)
    problems.push_back(fmt::format(
        "{}/n_embd = {} does not divide by n_head = {}",
        pointer,
        sizes.hidden,
        sizes.heads));
  return {
      .shape = gpt_shape(sizes, name),
      .positions = sizes.positions,
      .train_takes_it = false};
}

}  // namespace

ModelFile parse_model_file(
    const Json& json,
    const std::string& name,
    const std::string& pointer,
    Problems& problems) {
  if (json.is_object() && json.contains("model") && json["model"].is_object() &&
      json["model"].contains("config"))
    return parse_model_file(
        json["model"]["config"], name, pointer + "/model/config", problems);
  if (json.is_object() && json.value("model_type", Json()) == Json("gpt2"))
    return parse_gpt2(json, name, pointer, problems);
  const size_t before = problems.size();
  const DecoderConfig config = parse_decoder_config(json, pointer, problems);
  if (problems.size() > before)
    return {};
  return {
      .shape = shape_of(config, name),
      .positions = config.max_position_embeddings};
}

}  // namespace brigade::planner
