#include "brigade/generate/text_generator.h"

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/generate/stored_model.h"
#include "brigade/generate/token_generator.h"
#include "brigade/tokenizer/streaming_decoder.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {
namespace {

void check(const GenerateOptions& options) {
  std::vector<std::string> problems;
  if (options.max_tokens < 0)
    problems.push_back(
        fmt::format("--max-tokens {} is negative", options.max_tokens));
  // Also where it is not a number.
  if (!(options.temperature >= 0))
    problems.push_back(fmt::format(
        "--temperature {} is not a number from 0 on", options.temperature));
  if (options.top_k < 0)
    problems.push_back(fmt::format("--top-k {} is negative", options.top_k));
  if (!(options.top_p > 0 && options.top_p <= 1))
    problems.push_back(
        fmt::format("--top-p {} is not in (0, 1]", options.top_p));
  if (!problems.empty())
    throw ConfigError(problems);
}

// The prompt's tokens; at least one, since the model continues something.
std::vector<int64_t> encode_prompt(
    const Tokenizer& tokenizer,
    const std::string& prompt) {
  const std::vector<int32_t> ids =
      tokenizer.encode(prompt, {.special_tokens = SpecialTokens::kTemplate});
  if (!ids.empty())
    return {ids.begin(), ids.end()};
  const auto start =
      tokenizer.bos_id() ? tokenizer.bos_id() : tokenizer.eos_id();
  if (!start)
    throw ConfigError("--prompt is empty and the tokenizer has no <s>");
  return {*start};
}

struct Prompt {
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<int64_t> tokens;
};

Prompt read_prompt(const GenerateOptions& options, const StoredModel& stored) {
  check(options);
  Prompt prompt;
  prompt.tokenizer = stored.open_tokenizer(options.tokenizer);
  prompt.tokens = encode_prompt(*prompt.tokenizer, options.prompt);
  return prompt;
}

}  // namespace

void check_generate_options(const GenerateOptions& options) {
  read_prompt(options, StoredModel(options.checkpoint));
}

GenerateResult generate_text(
    const GenerateOptions& options,
    const TrainConfig& config,
    const ProcessMesh& mesh,
    const std::function<void(std::string_view)>& write) {
  const StoredModel stored(options.checkpoint);
  stored.verify(*mesh.world());
  const Prompt prompt = read_prompt(options, stored);
  const Tokenizer& tokenizer = *prompt.tokenizer;
  TokenGenerator generator(
      stored,
      config,
      mesh,
      {options.temperature, options.top_k, options.top_p},
      options.seed);

  GenerateResult result;
  result.prompt_tokens = static_cast<int64_t>(prompt.tokens.size());
  StreamingDecoder decoder(tokenizer);
  for (const int64_t id : prompt.tokens)
    write(decoder.push(static_cast<int32_t>(id)));

  std::vector<int64_t> unseen = prompt.tokens;
  while (result.generated_tokens < options.max_tokens) {
    const int64_t token = generator.next(unseen);
    if (tokenizer.eos_id() == static_cast<int32_t>(token))
      break;
    ++result.generated_tokens;
    write(decoder.push(static_cast<int32_t>(token)));
    unseen = {token};
  }
  write(decoder.finish());
  return result;
}

}  // namespace brigade
