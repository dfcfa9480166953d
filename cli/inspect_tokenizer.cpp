#include <fmt/format.h>
#include <fmt/ranges.h>

#include "brigade/tokenizer/tokenizer.h"
#include "cli/inspect.h"

namespace brigade::cli {
namespace {

constexpr const char* kSample =
    "Hello, world! It's 2026; naïve café 🚒\n\tif (x == 42) return;";

std::string shown(const Tokenizer& tokenizer, int32_t id) {
  const auto text = tokenizer.token_text(id);
  return text ? quoted(*text, 40) : "(none)";
}

std::string special(
    const Tokenizer& tokenizer,
    const std::optional<int32_t>& id) {
  return id ? fmt::format("{} {}", *id, shown(tokenizer, *id)) : "none";
}

std::string range(const Tokenizer& tokenizer, int64_t begin, int64_t end) {
  std::string text;
  for (int64_t id = begin; id < end; ++id)
    text += shown(tokenizer, static_cast<int32_t>(id)) + "  ";
  return text;
}

}  // namespace

void inspect_tokenizer(const std::string& spec) {
  const auto tokenizer = load_tokenizer(spec);
  const int64_t size = tokenizer->vocab_size();
  int64_t without_text = 0;
  for (int64_t id = 0; id < size; ++id)
    without_text += !tokenizer->token_text(static_cast<int32_t>(id));
  const std::string sample = kSample;
  const auto ids = tokenizer->encode(sample);
  const auto template_ids =
      tokenizer->encode("", {.special_tokens = SpecialTokens::kTemplate});
  std::string pieces;
  for (const int32_t id : ids)
    pieces += (pieces.empty() ? "" : " ") + shown(*tokenizer, id);
  std::string around;
  for (const int32_t id : template_ids)
    around += (around.empty() ? "" : " ") + shown(*tokenizer, id);

  const int64_t few = std::min<int64_t>(5, size);
  print_rows(
      {{"tokenizer", tokenizer->description()},
       {"vocabulary",
        fmt::format(
            "{}{}",
            grouped(static_cast<uint64_t>(size)),
            without_text == 0
                ? ""
                : fmt::format(" ({} ids without a token)", without_text))},
       {"first", range(*tokenizer, 0, few)},
       {"last", range(*tokenizer, size - few, size)},
       {"bos", special(*tokenizer, tokenizer->bos_id())},
       {"eos", special(*tokenizer, tokenizer->eos_id())},
       {"template", around.empty() ? "adds nothing" : "adds " + around},
       {"sample", quoted(sample, 200)},
       {"",
        fmt::format(
            "{} tokens, {:.2f} bytes each: {}",
            ids.size(),
            static_cast<double>(sample.size()) /
                static_cast<double>(std::max<size_t>(1, ids.size())),
            fmt::join(ids, " "))},
       {"", pieces},
       {"decodes to",
        tokenizer->decode(ids) == sample
            ? "itself"
            : quoted(tokenizer->decode(ids), 200)}});
}

}  // namespace brigade::cli
